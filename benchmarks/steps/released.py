"""A step as the released code makes it: eager, one sequential noise stream, every answer a padded row of its own.

Decoders in float32 with a method's default settings, to be timed beside the suite's own step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from zo.optim.posterior import Posterior

METHODS = ("mezo", "mezo_adam", "hizoo", "lozo", "bszo", "bszo_b")
Draw = Callable[[int, int, torch.Size], Tensor]
Loss = Callable[[], float]


def padded_loss(model: Any, examples: Sequence[Any], pad_id: int) -> float:
    """Returns the loss of a mini-batch: candidates padded on the left, logits at every position."""
    rows = [e.prompt_ids + ids for e in examples for ids in e.candidate_ids]
    answers = torch.tensor([len(ids) for e in examples for ids in e.candidate_ids])
    left = partial(pad_sequence, batch_first=True, padding_side="left")
    ids = left([torch.tensor(row) for row in rows], padding_value=pad_id).to(model.device)
    mask = left([torch.ones(len(row), dtype=torch.long) for row in rows]).to(model.device)
    width = ids.shape[1]
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        log_probs = torch.log_softmax(logits, dim=-1)
        picked = log_probs.gather(-1, ids[:, 1:, None]).squeeze(-1)
        first = width - 1 - answers[:, None].to(model.device)
        is_answer = torch.arange(width - 1, device=model.device) >= first
        scores = (picked * is_answer).sum(-1) / is_answer.sum(-1)
        labels = torch.tensor([e.label for e in examples], device=model.device)
        return torch.nn.functional.cross_entropy(scores.view(len(examples), -1), labels).item()


def sequential(device: torch.device, step: int) -> Draw:
    """Returns the noise of one stream: every pass seeds it by step and direction, then draws tensor after tensor."""
    generator = torch.Generator(device)

    def draw(direction: int, j: int, shape: torch.Size) -> Tensor:
        if j == 0:
            generator.manual_seed(1000 * step + direction)
        return torch.randn(shape, generator=generator, device=device)

    return draw


class ReleasedStep:
    """Steps of one method on a model of its own.

    Args:
        model: A decoder, float32.
        pad_id: Fills short rows.
        config: The method's configuration: a registered one of METHODS.
        lr: η.
    """

    def __init__(self, model: Any, pad_id: int, config: Any, lr: float):
        self.model, self.pad_id, self.config, self.lr = model, pad_id, config, lr
        self.theta = [p.detach() for p in model.parameters()]
        self.made = 0
        self.step = getattr(self, f"_{config.name.removesuffix('_b')}")
        self.scale = math.sqrt(sum(p.numel() for p in self.theta) / 1e6)
        self.variance = self.scale**2
        if config.name in ("mezo_adam", "hizoo"):
            self.m, self.v = ([torch.zeros_like(p) for p in self.theta] for _ in range(2))
            self.h = [torch.ones_like(p) for p in self.theta]

    def __call__(self, examples: Sequence[Any], draw: Draw | None = None) -> None:
        """Makes one step on a mini-batch."""
        if draw is None:
            draw = sequential(self.theta[0].device, self.made)
        self.step(lambda: padded_loss(self.model, examples, self.pad_id), draw)
        self.made += 1

    def _displace(self, draw: Draw, direction: int, scale: float) -> None:
        for j, p in enumerate(self.theta):
            p.copy_(p.add(draw(direction, j, p.shape), alpha=scale))

    def _two_sided(self, loss: Loss, draw: Draw) -> tuple[float, float]:
        """Returns the losses at θ + εz and θ − εz; θ is where it was."""
        self._displace(draw, 0, self.config.eps)
        plus = loss()
        self._displace(draw, 0, -2 * self.config.eps)
        minus = loss()
        self._displace(draw, 0, self.config.eps)
        return plus, minus

    def _slope(self, loss: Loss, draw: Draw) -> float:
        plus, minus = self._two_sided(loss, draw)
        return (plus - minus) / (2 * self.config.eps)

    def _mezo(self, loss: Loss, draw: Draw) -> None:
        self._displace(draw, 0, -self.lr * self._slope(loss, draw))

    def _mezo_adam(self, loss: Loss, draw: Draw) -> None:
        config, slope, t = self.config, self._slope(loss, draw), self.made + 1
        for j, (p, m, v) in enumerate(zip(self.theta, self.m, self.v, strict=True)):
            g = slope * draw(0, j, p.shape)
            m.copy_(config.beta1 * m + (1 - config.beta1) * g)
            v.copy_(config.beta2 * v + (1 - config.beta2) * g**2)
            m_hat, v_hat = m / (1 - config.beta1**t), v / (1 - config.beta2**t)
            p.copy_(p - self.lr * m_hat / (v_hat.sqrt() + config.adam_eps))

    def _hizoo(self, loss: Loss, draw: Draw) -> None:
        def scaled(i: int, j: int, shape: torch.Size) -> Tensor:
            return draw(i, j, shape) / self.h[j].sqrt()

        here, eps, smooth = loss(), self.config.eps, self.config.hessian_smooth
        plus, minus = self._two_sided(loss, scaled)
        bend = abs(plus + minus - 2 * here)
        for j, h in enumerate(self.h):
            z = draw(0, j, h.shape)
            h.copy_((1 - smooth) * h + bend * smooth * h * z**2 / (2 * eps**2))
        self._displace(scaled, 0, -self.lr * (plus - minus) / (2 * eps))

    def _lozo(self, loss: Loss, draw: Draw) -> None:
        rank, device = self.config.rank, self.theta[0].device
        if self.made % self.config.interval == 0:
            stream = torch.Generator(device).manual_seed(self.made)
            sizes = [p.numel() // len(p) if p.dim() > 1 else 0 for p in self.theta]
            self.factors = [torch.randn(n, rank, generator=stream, device=device) for n in sizes]

        def low_rank(i: int, j: int, shape: torch.Size) -> Tensor:
            if len(shape) < 2:
                return draw(i, j, shape)
            u = draw(i, j, torch.Size([shape[0], rank]))
            return (u @ self.factors[j].T).view(shape)

        self._displace(low_rank, 0, -self.lr * self._slope(loss, low_rank))

    def _bszo(self, loss: Loss, draw: Draw) -> None:
        config = self.config
        here, belief = loss(), Posterior(config.k, self.scale)
        slopes: list[float] = []
        for tau in range(config.k + 1 if config.m is None else config.m):
            d = np.eye(config.k)[tau % config.k]
            if tau >= config.k:
                d = belief.widest_direction()
            if tau >= config.k and config.reuse_probes:
                d, y = np.eye(config.k)[belief.widest_axis()], slopes[belief.widest_axis()]
            else:
                self._along(d, draw, config.eps)
                y = (loss() - here) / config.eps
                self._along(d, draw, -config.eps)
            slopes.append(y)
            ema = config.noise_ema
            self.variance = (1 - ema) * self.variance + ema * belief.residual(d, y) ** 2
            noise_std = max(config.noise_floor * self.scale, math.sqrt(self.variance))
            belief.observe(d, y, noise_std)
        self._along(belief.mean, draw, -self.lr)

    def _along(self, d: np.ndarray, draw: Draw, scale: float) -> None:
        for i, d_i in enumerate(d):
            if abs(d_i) > 1e-10:
                self._displace(draw, i, scale * float(d_i))
