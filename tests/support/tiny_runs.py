"""A method on a tiny model, with the loss of one mini-batch."""

import torch
from torch import Tensor

from tests.support.quadratic import start
from tests.support.tiny_models import examples_of
from zo.lm.scoring.candidates import CandidateScorer
from zo.run.losses import BatchLoss
from zo.weights.loss import ClosureLoss
from zo.weights.space import ParameterSpace


class TinyRun:
    """A method's steps on a tiny model, or one with an adapter; `candidates` are lengths in tokens.

    Models of other kinds come with their loss, a function of them.
    """

    def __init__(
        self,
        model,
        method,
        restore,
        noise="torch",
        lr=1e-3,
        candidates=(1, 1),
        rounding="nearest",
        loss=None,
        **settings,
    ):
        self.model, self.params = model, ParameterSpace.of(model, restore, noise, rounding)
        self.optimizer = start(method, self, lr, 3, **settings)
        if loss is not None:
            self.loss = ClosureLoss(torch.no_grad()(lambda: loss(model)))
            return
        masked = type(model).__name__.endswith("MaskedLM")
        kind, pad = "masked" if masked else "decoder", model.config.pad_token_id or 1
        self.scorer = CandidateScorer(model, pad, kind=kind)
        self.examples = examples_of(list(candidates), masked=masked)
        self.loss = BatchLoss(self.scorer, self.scorer.collate(self.examples), self.params)

    def steps(self, count: int) -> list[float]:
        return [loss for _ in range(count) for loss in self.optimizer.step(self.loss).losses]

    def weights(self) -> list[Tensor]:
        return [p.clone() for p in self.params.settled()]
