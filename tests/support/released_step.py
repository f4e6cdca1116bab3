"""A whole step as the released code makes it: eager, one sequential noise stream, every answer a sequence of its own.

The methods are those of plain_methods.py and the loss that of plain_scoring.py; here they meet, to be timed.
Decoders in float32: in half precision plain_methods computes in float32 and rounds, which the released code does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.support import plain_methods as plain
from tests.support.plain_scoring import released_loss

METHODS = ("mezo", "mezo_adam", "hizoo", "lozo", "bszo", "bszo_b")


class Sequential:
    """Noise as the released code draws it: every pass seeds one stream anew and draws tensor after tensor from it.

    Args:
        device: Where it is drawn.
        step: The step; each of its directions has a seed of its own.
    """

    def __init__(self, device: torch.device, step: int):
        self.generator = torch.Generator(device)
        self.step = step

    def __call__(self, direction: int, j: int, shape: torch.Size) -> Tensor:
        if j == 0:
            self.generator.manual_seed(1000 * self.step + direction)
        return torch.randn(shape, generator=self.generator, device=self.generator.device)


class ReleasedStep:
    """Steps of one method on a model of its own.

    Args:
        model: A decoder, float32.
        pad_id: Fills short rows.
        config: The method's configuration, with its defaults: a registered one of METHODS.
        lr: η.
    """

    def __init__(self, model: Any, pad_id: int, config: Any, lr: float):
        if next(model.parameters()).dtype != torch.float32:
            raise ValueError("the released step is rendered in float32 only")
        self.model, self.pad_id, self.config, self.lr = model, pad_id, config, lr
        self.theta = [p.detach() for p in model.parameters()]
        self.made = 0
        self.step = getattr(self, f"_{config.name}")
        self.scale = np.sqrt(sum(p.numel() for p in self.theta) / 1e6)
        self.noise = plain.Noise.start(self.scale)
        if config.name == "mezo_adam":
            self.moments = plain.Moments.start(self.theta)
        if config.name == "hizoo":
            self.h = [torch.ones_like(p) for p in self.theta]

    def __call__(self, examples: Sequence[Any], draw: plain.Draw | None = None) -> Any:
        """One step on a mini-batch; returns what the method measured."""
        if draw is None:
            draw = Sequential(self.theta[0].device, self.made)
        found = self.step(lambda: released_loss(self.model, examples, self.pad_id), draw)
        self.made += 1
        return found

    def _mezo(self, loss: Callable[[], float], draw: plain.Draw) -> list[float]:
        return plain.mezo_step(self.theta, loss, draw, lr=self.lr, eps=self.config.eps)

    def _mezo_adam(self, loss: Callable[[], float], draw: plain.Draw) -> list[float]:
        names = ("eps", "beta1", "beta2", "adam_eps")
        kept = {name: getattr(self.config, name) for name in names}
        return plain.mezo_adam_step(self.theta, loss, draw, self.moments, lr=self.lr, **kept)

    def _hizoo(self, loss: Callable[[], float], draw: plain.Draw) -> tuple[float, float]:
        smooth = self.config.hessian_smooth
        return plain.hizoo_step(
            self.theta, loss, draw, self.h, lr=self.lr, eps=self.config.eps, smooth=smooth
        )

    def _lozo(self, loss: Callable[[], float], draw: plain.Draw) -> float:
        rank = self.config.rank
        if self.made % self.config.interval == 0:
            stream = torch.Generator(self.theta[0].device).manual_seed(self.made)
            self.v = [
                torch.randn(p.numel() // len(p), rank, generator=stream, device=p.device)
                if p.dim() > 1
                else None
                for p in self.theta
            ]
        kept = {"rank": rank, "divide_by_rank": self.config.divide_by_rank}
        return plain.lozo_step(
            self.theta, loss, draw, self.v, lr=self.lr, eps=self.config.eps, **kept
        )

    def _bszo(self, loss: Callable[[], float], draw: plain.Draw) -> plain.BSZOResult:
        kept = {"eps": self.config.eps, "k": self.config.k, "m": self.config.m}
        reuse = self.config.reuse_probes
        return plain.bszo_step(
            self.theta,
            loss,
            draw,
            self.noise,
            lr=self.lr,
            prior_std=self.scale,
            reuse_probes=reuse,
            **kept,
        )

    _bszo_b = _bszo
