"""What a process that makes a run needs, imported and done once before it is forked."""

import gc
import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import datasets  # noqa: F401
import torch

import zo.run.runner  # noqa: F401
from zo.lm.config import STAND_IN, ModelConfig
from zo.lm.load import load

torch.set_num_threads(1)
load(ModelConfig(name="reviews-tiny", path=STAND_IN), torch.float32, "cpu")
gc.collect()
gc.freeze()  # no child's garbage collection goes through the libraries
