"""Plain renderings of the methods, from their algorithm boxes: a line there, a line here.

They act on a list of tensors in place, in the paper's sequence of displacements, sharing nothing
with the suite: no parameter space, no posterior class, no random streams. The noise comes from
`draw(direction, tensor, shape)`, so that the same numbers can drive a trajectory of the suite and one
of these.

Sources: BSZO, Algorithms 1 and 2 with the posterior of section "Posterior Update In Subspace";
MeZO, Algorithm 1 of Malladi et al. 2023.
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


def mezo_step(
    theta: Sequence[Tensor],
    loss: Loss,
    draw: Draw,
    *,
    lr: float,
    eps: float,
    two_sided: bool = True,
) -> float:
    """One step of MeZO (ZO-SGD); returns the slope estimate."""
    if two_sided:
        displace(theta, draw, 0, eps)
        plus = loss()
        displace(theta, draw, 0, -2 * eps)
        minus = loss()
        displace(theta, draw, 0, eps)
        slope = (plus - minus) / (2 * eps)
    else:
        here = loss()
        displace(theta, draw, 0, eps)
        plus = loss()
        displace(theta, draw, 0, -eps)
        slope = (plus - here) / eps
    displace(theta, draw, 0, -lr * slope)
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
