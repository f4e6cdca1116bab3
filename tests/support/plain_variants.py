"""Plain renderings of the methods beyond the paper's six, from their formulas, and what runs each beside the suite's.

They share nothing with the suite but the noise: `Twin.z(i, j)` is direction i's part for tensor j, `Twin.normal` any
other draw. Each function returns one step: () -> the record that the suite's step should have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zo.noise import PERTURBATION, NoiseKey, normal_

Step = Callable[[], tuple[float, ...]]


class Twin:
    """θ of the rendering, its loss, and the suite's optimizer, for noise and step alone."""

    def __init__(
        self, opt: Any, settings: dict[str, Any], lr: float, theta: list[Tensor], loss: Any
    ):
        self.opt, self.lr, self.theta, self.loss = opt, lr, theta, loss
        self.s = settings
        self.eps, self.n = settings["eps"], settings.get("n", 1)

    def normal(self, stream: int, step: int, i: int, j: int, shape: Any) -> Tensor:
        key = NoiseKey(self.opt.seed, stream, step, i)
        return normal_(torch.empty(shape), key, j)

    def z(self, i: int, j: int) -> Tensor:
        shape = self.theta[j].shape
        return self.normal(PERTURBATION, self.opt.step_index, i, j, shape)

    def gaussians(self) -> list[list[Tensor]]:
        return [[self.z(i, j) for j in range(len(self.theta))] for i in range(self.n)]

    def at(self, scale: float, z: list[Tensor]) -> float:
        """L(θ + scale z), with θ put back exactly."""
        was = [p.clone() for p in self.theta]
        self.move(scale, z)
        value = self.loss()
        for p, q in zip(self.theta, was, strict=True):
            p.copy_(q)
        return value

    def move(self, scale: float, z: list[Tensor]) -> None:
        for p, z_p in zip(self.theta, z, strict=True):
            p.add_(z_p, alpha=scale)

    def slopes(self, directions: list[list[Tensor]]) -> list[float]:
        return [(self.at(self.eps, z) - self.at(-self.eps, z)) / (2 * self.eps) for z in directions]

    def gradient(self, directions: list[list[Tensor]], slopes: list[float]) -> list[Tensor]:
        """1/n Σ c_i z_i."""
        pairs = list(zip(slopes, directions, strict=True))
        return [sum(c * z[j] for c, z in pairs) / len(pairs) for j in range(len(self.theta))]


def zo_sign(t: Twin) -> Step:
    def step() -> tuple[float, ...]:
        z = t.gaussians()
        c = t.slopes(z)
        t.move(-t.lr, [g.sign() for g in t.gradient(z, c)])
        return tuple(c)

    return step


def zo_momentum(t: Twin) -> Step:
    m = [torch.zeros(p.shape) for p in t.theta]

    def step() -> tuple[float, ...]:
        z = t.gaussians()
        c = t.slopes(z)
        for m_p, g in zip(m, t.gradient(z, c), strict=True):
            m_p.copy_(t.s["momentum"] * m_p + g)
        t.move(-t.lr, m)
        return tuple(c)

    return step


def zo_conservative(t: Twin) -> Step:
    def step() -> tuple[float, ...]:
        z = t.gaussians()
        c = t.slopes(z)
        g = t.gradient(z, c)
        here, ahead, behind = t.at(0.0, g), t.at(-t.lr, g), t.at(t.lr, g)
        side = 0.0 if here <= min(ahead, behind) else 1.0 if ahead <= behind else -1.0
        t.move(-t.lr * side, g)
        return tuple(side * c_i for c_i in c)

    return step


def sparse_mezo(t: Twin) -> Step:
    share = t.s["share"]
    h = [p.abs().flatten().sort().values[max(1, int(share * p.numel())) - 1] for p in t.theta]

    def step() -> tuple[float, ...]:
        mask = [(p.abs() <= h_p).float() for p, h_p in zip(t.theta, h, strict=True)]
        z = [[m * z_j for m, z_j in zip(mask, z, strict=True)] for z in t.gaussians()]
        c = t.slopes(z)
        t.move(-t.lr, t.gradient(z, c))
        return tuple(c)

    return step


def meazo(t: Twin) -> Step:
    """`step_norm=rms` of MeZO."""
    beta, v, steps = t.s["norm_beta"], 0.0, 0

    def step() -> tuple[float, ...]:
        nonlocal v, steps
        z = t.gaussians()
        c = t.slopes(z)
        steps += 1
        v = beta * v + (1 - beta) * (sum(c) / len(c)) ** 2
        v_hat = v / (1 - beta**steps)
        t.move(-t.lr / (math.sqrt(v_hat) + 1e-8), t.gradient(z, c))
        return tuple(c)

    return step


RENDERINGS: dict[str, Callable[[Twin], Step]] = {
    "zo_sign": zo_sign,
    "zo_momentum": zo_momentum,
    "zo_conservative": zo_conservative,
    "sparse_mezo": sparse_mezo,
    "meazo": meazo,
}
