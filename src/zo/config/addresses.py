"""Whether a run's model and data are where its configuration says, as far as that is known without a hub."""

import os
from pathlib import Path

from zo.config.checks import Problem
from zo.config.identity import run_id
from zo.config.settings import RunConfig
from zo.lm import source
from zo.lm.config import ModelError
from zo.tasks.config import TaskError
from zo.tasks.reading import check_addresses


def check_paths(cfg: RunConfig) -> Problem | None:
    """Returns why a new run cannot read its model or data here; None if they are here, or the run has begun.

    Does not import torch, so that the answer takes no longer than the check of a value.
    """
    try:
        if cfg.model.weights == "pretrained" or not cfg.model.architecture:
            source.present(cfg.model)
        check_addresses(cfg.task)
    except (ModelError, TaskError) as error:
        if os.path.exists(
            Path(cfg.out, run_id(cfg))
        ):  # it may have ended, and does not need them then
            return None
        key, _, right = str(error).partition(": ")
        return Problem(key, ..., right)
    return None
