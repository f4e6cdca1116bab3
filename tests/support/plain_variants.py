"""Plain renderings of the methods beyond the paper's six, from their formulas, and what runs each beside the suite's.

They share nothing with the suite but the noise: `Twin.z(i, j)` is direction i's part for tensor j, `Twin.normal` any
other draw. Each function returns one step: () -> the record that the suite's step should have.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zo.noise import PERTURBATION, SUBSPACE, NoiseKey, normal_
from zo.noise.torch_generator import rademacher_

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


def conmezo(t: Twin) -> Step:
    """Weight cos ϑ on the momentum, sin ϑ on the noise."""
    m = [t.normal(SUBSPACE, 0, 0, j, p.shape) for j, p in enumerate(t.theta)]
    d, s, steps = sum(p.numel() for p in t.theta), t.s, 0

    def step() -> tuple[float, ...]:
        nonlocal steps
        length = math.sqrt(sum(float((x.double() ** 2).sum()) for x in m))
        parts = zip(m, t.gaussians()[0], strict=True)
        z = [
            math.sqrt(d) * math.cos(s["angle"]) * x / length + math.sin(s["angle"]) * u
            for x, u in parts
        ]
        (c,) = t.slopes([z])
        t.move(-t.lr * c, z)
        past = max(0, steps - s["hold"]) / s["ramp"]
        beta = s["beta"] - (s["beta"] - s["beta_start"]) / (1 + 8 * past**1.8) ** 3
        beta = s["beta"] if past > 1 else beta
        for x, z_x in zip(m, z, strict=True):
            x.copy_(beta * x + (1 - beta) * c * z_x)
        steps += 1
        return (c,)

    return step


def adamezo(t: Twin) -> Step:
    past: list[tuple[float, list[Tensor]]] = []

    def step() -> tuple[float, ...]:
        z = t.gaussians()
        (c,) = t.slopes(z)
        past.insert(0, (c, z[0]))
        if len(past) <= t.s["window"] + 1:  # as the released code counts
            t.move(-t.lr * c, z[0])
            return (c,)
        recent = past[: t.s["window"]]
        for j, p in enumerate(t.theta):
            m = sum(t.s["beta1"] ** k * c_k * z_k[j] for k, (c_k, z_k) in enumerate(recent))
            v = sum(t.s["beta2"] ** k * (c_k * z_k[j]) ** 2 for k, (c_k, z_k) in enumerate(recent))
            p.sub_(t.lr * t.s["scale"] * m / (v.sqrt() + t.s["adam_eps"]))
        return (c,)

    return step


def fzoo(t: Twin) -> Step:
    def step() -> tuple[float, ...]:
        key = [NoiseKey(t.opt.seed, PERTURBATION, t.opt.step_index, i) for i in range(t.n)]
        u = [
            [rademacher_(torch.empty(p.shape), key[i], j) for j, p in enumerate(t.theta)]
            for i in range(t.n)
        ]
        here, losses = t.loss(), [t.at(t.eps, u_i) for u_i in u]
        sigma = statistics.stdev(losses)
        c = [(loss - here) / sigma for loss in losses]
        t.move(-t.lr, t.gradient(u, c))
        return tuple(c)

    return step


def columns(t: Twin, i: int, j: int, step: int, *, kept: bool, rank: int, length: int) -> Tensor:
    """(length, rank) normals of a kept factor or of a new one."""
    return t.normal(SUBSPACE if kept else PERTURBATION, step, i, j, (rank, length)).T


def lozo_m(t: Twin) -> Step:
    rank, interval, beta, steps = t.s["rank"], t.s["interval"], t.s["momentum"], 0
    n: list[Any] = [None for _ in t.theta]
    old: list[Any] = [None for _ in t.theta]

    def step() -> tuple[float, ...]:
        nonlocal steps
        u, v, z = [], [], []
        for j, p in enumerate(t.theta):
            if p.dim() < 2:
                u, v = [*u, t.z(0, j)], [*v, None]
                z.append(u[j])
                continue
            u.append(columns(t, 0, j, steps, kept=False, rank=rank, length=p.shape[0]))
            v.append(columns(t, 0, j, steps // interval, kept=True, rank=rank, length=p.shape[1]))
            z.append(u[j] @ v[j].T)
        (c,) = t.slopes([z])
        for j, p in enumerate(t.theta):
            if n[j] is None:
                n[j] = c * u[j]
            elif p.dim() > 1 and steps % interval == 0:
                n[j] = beta * n[j] @ (old[j].T @ v[j]) / p.shape[1] + (1 - beta) * c * u[j]
            else:
                n[j] = beta * n[j] + (1 - beta) * c * u[j]
            p.sub_(t.lr * (n[j] @ v[j].T if p.dim() > 1 else n[j]))
        old[:] = v
        steps += 1
        return (c,)

    return step


def haar(t: Twin, side: int, j: int, step: int, rank: int, length: int) -> Tensor:
    """(length, min(rank, length)) orthonormal columns: Gram-Schmidt of normals."""
    g = columns(t, side, j, step, kept=True, rank=rank, length=length).double()
    basis: list[Tensor] = []
    for x in g.T[: min(rank, length)]:
        for _ in range(2):
            x = x - sum((x @ b) * b for b in basis) if basis else x
        basis.append(x / x.norm())
    return torch.stack(basis, dim=1).float()


def subzero(t: Twin) -> Step:
    rank, interval, steps = t.s["rank"], t.s["interval"], 0

    def step() -> tuple[float, ...]:
        nonlocal steps
        d = []
        for j, p in enumerate(t.theta):
            if p.dim() < 2:
                d.append(t.z(0, j))
                continue
            m, n = p.shape
            a, b = (
                haar(t, 0, j, steps // interval, rank, m),
                haar(t, 1, j, steps // interval, rank, n),
            )
            z = t.normal(PERTURBATION, steps, 0, j, (rank, rank))[: a.shape[1], : b.shape[1]]
            d.append(math.sqrt(m * n / (a.shape[1] * b.shape[1])) * a @ z @ b.T)
        (c,) = t.slopes([d])
        t.move(-t.lr * c, d)
        steps += 1
        return (c,)

    return step


def tezo(t: Twin) -> Step:
    rank, s, steps = t.s["rank"], t.s, 0
    u = [
        columns(t, 0, j, 0, kept=True, rank=rank, length=p.shape[0]) for j, p in enumerate(t.theta)
    ]
    v = [
        columns(t, 1, j, 0, kept=True, rank=rank, length=p.shape[-1]) for j, p in enumerate(t.theta)
    ]
    a, b = [0.0 for _ in t.theta], [0.0 for _ in t.theta]

    def spread(j: int, x: Any) -> Any:
        """U diag(x) Vᵀ / √r."""
        return x if t.theta[j].dim() < 2 else (u[j] * x) @ v[j].T / math.sqrt(rank)

    def step() -> tuple[float, ...]:
        nonlocal steps
        shapes = [(rank,) if p.dim() > 1 else p.shape for p in t.theta]
        tau = [t.normal(PERTURBATION, steps, 0, j, shape) for j, shape in enumerate(shapes)]
        (c,) = t.slopes([[spread(j, x) for j, x in enumerate(tau)]])
        steps += 1
        for j, p in enumerate(t.theta):
            a[j] = s["beta1"] * a[j] + (1 - s["beta1"]) * c * tau[j]
            b[j] = s["beta2"] * b[j] + (1 - s["beta2"]) * (c * tau[j]) ** 2
            move = {"sgd": c * tau[j], "momentum": a[j], "adam": a[j] / (1 - s["beta1"] ** steps)}
            moved = spread(j, move[s["variant"]])
            if s["variant"] == "adam":
                square = b[j] / (1 - s["beta2"] ** steps)
                if p.dim() > 1:
                    square = (u[j] ** 2 * square) @ (v[j] ** 2).T / rank
                moved = moved / (square.sqrt() + s["adam_eps"])
            p.sub_(t.lr * moved)
        return (c,)

    return step


def zo_muon(t: Twin) -> Step:
    """With `msign=svd`."""
    rank, interval, steps = t.s["rank"], t.s["interval"], 0

    def step() -> tuple[float, ...]:
        nonlocal steps
        basis = [
            haar(t, 0, j, steps // interval, rank, p.shape[0]) if p.dim() > 1 else None
            for j, p in enumerate(t.theta)
        ]
        psi = [
            [
                t.normal(PERTURBATION, steps, i, j, (rank, p.shape[1]))[: b.shape[1]]
                if b is not None
                else t.z(i, j)
                for j, (p, b) in enumerate(zip(t.theta, basis, strict=True))
            ]
            for i in range(t.n)
        ]
        z = [[x if b is None else b @ x for x, b in zip(of, basis, strict=True)] for of in psi]
        here = t.loss()
        c = [(t.at(t.eps, z_i) - here) / t.eps for z_i in z]
        for j, (p, b) in enumerate(zip(t.theta, basis, strict=True)):
            g = sum(c_i * of[j] for c_i, of in zip(c, psi, strict=True)) / t.n
            if b is None:
                p.sub_(t.lr * t.s["vector_lr"] * g)
                continue
            left, _, right = torch.linalg.svd(g.double(), full_matrices=False)
            p.sub_(t.lr * b @ (left @ right).float())
        steps += 1
        return tuple(c)

    return step


RENDERINGS: dict[str, Callable[[Twin], Step]] = {
    made.__name__: made
    for made in (
        *(zo_sign, zo_momentum, zo_conservative, sparse_mezo, meazo, conmezo, adamezo, fzoo),
        *(lozo_m, subzero, tezo, zo_muon),
    )
}
