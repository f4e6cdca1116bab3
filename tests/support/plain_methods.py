"""Plain renderings of the methods, from their algorithm boxes: a line there, a line here.

They act on a list of tensors in place, in the paper's sequence of displacements, sharing nothing
with the suite: no parameter space, no posterior class, no random streams. The noise comes from
`draw(direction, tensor, shape)`, so that the same numbers can drive a trajectory of the suite and one
of these.

Sources: BSZO, Algorithms 1 and 2 with the posterior of section "Posterior Update In Subspace";
MeZO, Algorithms 1 and 2 of Malladi et al. 2023; Adam, Algorithm 1 of Kingma and Ba 2015; HiZOO,
Algorithm 1 of Zhao et al. 2025, in the order of its code; LOZO, Algorithm 1 of Chen et al. 2025.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Draw = Callable[[int, int, torch.Size], Tensor]
Loss = Callable[[], float]

TINY = 1e-10  # coefficients at or below this neither displace nor update
JITTER = 1e-10  # added to the diagonal of the covariance after each observation


def displace(theta: Sequence[Tensor], draw: Draw, direction: int, scale: float) -> None:
    """θ ← θ + scale · z, the arithmetic in float32 and each tensor rounded once."""
    for j, p in enumerate(theta):
        z = draw(direction, j, p.shape)
        p.copy_(p.float().add(z, alpha=scale))


def decay(theta: Sequence[Tensor], factor: float, decays: Sequence[bool]) -> None:
    """θ ← θ − factor · θ, in float32, where decay applies."""
    for p, does in zip(theta, decays, strict=True):
        if does and factor:
            p.copy_(p.float() - factor * p.float())


def mezo_step(
    theta: Sequence[Tensor],
    loss: Loss,
    draw: Draw,
    *,
    lr: float,
    eps: float,
    two_sided: bool = True,
    n: int = 1,
    weight_decay: float = 0.0,
    decays: Sequence[bool] = (),
) -> list[float]:
    """One step of MeZO (ZO-SGD), n-SPSA if n > 1; returns the slope estimates."""
    slopes = measured_slopes(theta, loss, draw, n, eps, two_sided)
    if weight_decay:
        decay(theta, lr * weight_decay, decays)
    for i, slope in enumerate(slopes):
        displace(theta, draw, i, -lr * slope / n)
    return slopes


def measured_slopes(
    theta: Sequence[Tensor], loss: Loss, draw: Draw, n: int, eps: float, two_sided: bool
) -> list[float]:
    """The difference quotients along n directions, each out, across, and back."""
    here = math.nan if two_sided else loss()
    slopes = []
    for i in range(n):
        displace(theta, draw, i, eps)
        plus = loss()
        if two_sided:
            displace(theta, draw, i, -2 * eps)
            minus = loss()
            displace(theta, draw, i, eps)
            slopes.append((plus - minus) / (2 * eps))
        else:
            displace(theta, draw, i, -eps)
            slopes.append((plus - here) / eps)
    return slopes


@dataclass
class Moments:
    """What Adam carries from one step to the next, in float32."""

    m: list[Tensor]
    v: list[Tensor]
    t: int = 0

    @classmethod
    def start(cls, theta: Sequence[Tensor]) -> Moments:
        m, v = ([torch.zeros_like(p, dtype=torch.float32) for p in theta] for _ in range(2))
        return cls(m, v)


def adam_update(
    theta: Sequence[Tensor],
    g: Sequence[Tensor],
    moments: Moments,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    adam_eps: float,
) -> None:
    """θ ← θ − η m̂ / (√v̂ + δ)."""
    moments.t += 1
    for p, g_p, m, v in zip(theta, g, moments.m, moments.v, strict=True):
        m.copy_(beta1 * m + (1 - beta1) * g_p)
        v.copy_(beta2 * v + (1 - beta2) * g_p**2)
        m_hat = m / (1 - beta1**moments.t)
        v_hat = v / (1 - beta2**moments.t)
        p.copy_(p.float() - lr * m_hat / (v_hat.sqrt() + adam_eps))


def mezo_adam_step(
    theta: Sequence[Tensor],
    loss: Loss,
    draw: Draw,
    moments: Moments,
    *,
    lr: float,
    eps: float,
    two_sided: bool = True,
    n: int = 1,
    weight_decay: float = 0.0,
    decays: Sequence[bool] = (),
    beta1: float = 0.9,
    beta2: float = 0.999,
    adam_eps: float = 1e-8,
) -> list[float]:
    """One step of MeZO-Adam: g = c z, or the mean of n of them, is Adam's gradient."""
    slopes = measured_slopes(theta, loss, draw, n, eps, two_sided)
    if weight_decay:
        decay(theta, lr * weight_decay, decays)
    g = [
        sum(c * draw(i, j, p.shape) for i, c in enumerate(slopes)) / n for j, p in enumerate(theta)
    ]
    adam_update(theta, g, moments, lr=lr, beta1=beta1, beta2=beta2, adam_eps=adam_eps)
    return slopes


def sgd_update(
    theta: Sequence[Tensor],
    g: Sequence[Tensor],
    velocity: Sequence[Tensor],
    *,
    lr: float,
    mu: float,
) -> None:
    """b ← μ b + g; θ ← θ − η b."""
    for p, g_p, b in zip(theta, g, velocity, strict=True):
        b.copy_(mu * b + g_p)
        p.copy_(p - lr * b)


def hizoo_step(
    theta: Sequence[Tensor],
    loss: Loss,
    draw: Draw,
    h: Sequence[Tensor],
    *,
    lr: float,
    eps: float,
    smooth: float,
    weight_decay: float = 0.0,
    decays: Sequence[bool] = (),
) -> tuple[float, float]:
    """One step of HiZOO; h is H, ones at the start. Returns c and |ℓ₊ + ℓ₋ − 2 ℓ₀|."""

    def scaled(i: int, j: int, shape: torch.Size) -> Tensor:
        return draw(i, j, shape) / h[j].sqrt()

    here = loss()
    displace(theta, scaled, 0, eps)
    plus = loss()
    displace(theta, scaled, 0, -2 * eps)
    minus = loss()
    displace(theta, scaled, 0, eps)
    bend = abs(plus + minus - 2 * here)
    for j, h_j in enumerate(h):
        z = draw(0, j, h_j.shape)
        h_j.copy_((1 - smooth) * h_j + bend * smooth * h_j * z**2 / (2 * eps**2))
    slope = (plus - minus) / (2 * eps)
    if weight_decay:
        decay(theta, lr * weight_decay, decays)
    displace(theta, scaled, 0, -lr * slope)
    return slope, bend


def lozo_step(
    theta: Sequence[Tensor],
    loss: Loss,
    draw_u: Draw,
    v: Sequence[Tensor | None],
    *,
    lr: float,
    eps: float,
    rank: int,
    divide_by_rank: bool,
    weight_decay: float = 0.0,
    decays: Sequence[bool] = (),
) -> float:
    """One step of LOZO with the given V, columns × r, None for a parameter that is no matrix."""

    def low_rank(i: int, j: int, shape: torch.Size) -> Tensor:
        v_j = v[j]
        if v_j is None:
            return draw_u(i, j, shape)
        u = draw_u(i, j, torch.Size([shape[0], rank]))
        return (u @ v_j.T).view(shape)

    def divided(i: int, j: int, shape: torch.Size) -> Tensor:
        return low_rank(i, j, shape) / (rank if v[j] is not None and divide_by_rank else 1)

    (slope,) = measured_slopes(theta, loss, low_rank, 1, eps, two_sided=True)
    if weight_decay:
        decay(theta, lr * weight_decay, decays)
    displace(theta, divided, 0, -lr * slope)
    return slope


def top_eigenvector(cov: np.ndarray) -> np.ndarray:
    """The unit vector v of largest vᵀΣv; of equals, the last that eigh returns."""
    return np.linalg.eigh(cov)[1][:, -1]


@dataclass
class Noise:
    """What BSZO carries from one step to the next: the running residual variance."""

    initial_std: float
    running_var: float

    @classmethod
    def start(cls, noise_std: float) -> Noise:
        return cls(noise_std, noise_std**2)


@dataclass
class BSZOResult:
    """The end of one BSZO step, for comparison."""

    mu: np.ndarray  # (k,)
    cov: np.ndarray  # (k, k)
    noise_std: float
    forwards: int


def measure(
    theta: Sequence[Tensor],
    loss: Loss,
    draw: Draw,
    d: np.ndarray,
    f0: float,
    *,
    eps: float,
    two_sided: bool,
) -> float:
    """The directional derivative along B d: out to θ + ε B d, and back, one z at a time."""

    def move(scale: float) -> None:
        for i, d_i in enumerate(d):
            if abs(d_i) > TINY:
                displace(theta, draw, i, scale * float(d_i))

    if two_sided:
        move(eps)
        plus = loss()
        move(-2 * eps)
        minus = loss()
        move(eps)
        return (plus - minus) / (2 * eps)
    move(eps)
    plus = loss()
    move(-eps)
    return (plus - f0) / eps


def bszo_step(
    theta: Sequence[Tensor],
    loss: Loss,
    draw: Draw,
    noise: Noise,
    *,
    lr: float,
    eps: float = 1e-4,
    k: int = 2,
    m: int | None = None,
    prior_std: float,
    reuse_probes: bool = True,
    two_sided: bool = False,
    adaptive_noise: bool = True,
    noise_ema: float = 0.1,
    noise_update: str = "every",
    noise_floor: float = 0.1,
    adaptive_sampling: bool = True,
) -> BSZOResult:
    """One step of BSZO (reuse_probes) or BSZO-B (not reuse_probes).

    noise_update says when σ_e² adapts: after `every` observation and before its Kalman update, or only
    in the τ > k branch, in that branch's printed order (`extra`).
    """
    m = k + 1 if m is None else m
    mu = np.zeros(k)
    cov = prior_std**2 * np.eye(k)
    forwards = 0
    f0 = float("nan")
    if not two_sided:
        f0 = loss()
        forwards += 1
    cache: dict[int, float] = {}
    d = np.zeros(k)
    y = float("nan")

    def adapt(residual: float) -> None:
        if adaptive_noise:
            noise.running_var = (1 - noise_ema) * noise.running_var + noise_ema * residual**2

    for tau in range(m):
        extra = tau >= k
        if extra and noise_update == "extra":
            # Algorithm 1 to the letter: d and y are still those of the observation before.
            adapt((y - d @ mu) / np.linalg.norm(d))

        fresh = True
        if extra and adaptive_sampling:
            top = top_eigenvector(cov)
            if reuse_probes:
                j = int(np.argmax(np.abs(top)))
                d, y, fresh = np.eye(k)[j], cache[j], False
            else:
                d = top
        else:
            d = np.eye(k)[tau % k]
        if fresh:
            y = measure(theta, loss, draw, d, f0, eps=eps, two_sided=two_sided)
            forwards += 2 if two_sided else 1
            if tau < k:
                cache[tau] = y

        if noise_update == "every":
            adapt((y - d @ mu) / np.linalg.norm(d))
        noise_std = max(noise_floor * noise.initial_std, math.sqrt(noise.running_var))

        gain = cov @ d / (d @ cov @ d + noise_std**2 * (d @ d))
        mu = mu + gain * (y - d @ mu)
        cov = cov - np.outer(gain, d @ cov)
        cov = (cov + cov.T) / 2 + JITTER * np.eye(k)

    for i in range(k):
        if abs(mu[i]) > TINY:
            displace(theta, draw, i, -lr * float(mu[i]))
    return BSZOResult(mu, cov, noise_std, forwards)


def batch_posterior(
    d: np.ndarray, y: np.ndarray, prior_std: float, noise_std: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    """Bayesian linear regression in closed form: (mean, cov) given d (m, k) and y (m,)."""
    variance = np.broadcast_to(np.square(noise_std), y.shape) * (d**2).sum(axis=1)  # diagonal of R
    precision = np.eye(d.shape[1]) / prior_std**2 + d.T @ (d / variance[:, None])
    cov = np.linalg.inv(precision)
    return cov @ d.T @ (y / variance), cov
