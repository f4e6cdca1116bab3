"""BSZO's steps on quadratics whose gradient and curvature are known, many independent ones at a time.

L(θ; ξ) = ½ θᵀHθ + ζᵀθ with H = diag(h) and ζ ~ N(0, (τ²/n) I) drawn once per mini-batch, so that tr Σ = τ². Every
difference has an error of its own beside, N(0, σ_ε²), as rounding gives. All arrays are float64; S is the number of
independent copies, n the dimension of θ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Quadratic:
    """A quadratic and its noise."""

    curvature: Array  # h, shape (n,), at least 0
    batch_noise: float = 0.0  # τ ≥ 0, with τ² = tr Σ
    slope_noise: float = 0.0  # σ_ε ≥ 0

    def loss(self, theta: Array) -> Array:
        """Returns L of (S, n) as (S,)."""
        return 0.5 * np.einsum("sn,n,sn->s", theta, self.curvature, theta)

    def gradient(self, theta: Array) -> Array:
        """Returns ∇L of (S, n) as (S, n)."""
        return theta * self.curvature


@dataclass(frozen=True)
class Method:
    """BSZO's settings, in the paper's symbols."""

    k: int  # directions per step
    m: int  # observations, at least k; those beyond the k-th repeat the slope of the widest axis
    eps: float = 1e-3  # ε
    prior_std: float = 1.0  # σ_p
    noise_std: float = 1.0  # σ_e, at the start
    noise_ema: float = 0.0  # α with which σ_e² follows the squared residuals; 0 keeps σ_e

    @property
    def gamma(self) -> float:
        """γ = σ_p² / (σ_p² + σ_e²) of the paper."""
        return self.prior_std**2 / (self.prior_std**2 + self.noise_std**2)


class Step(NamedTuple):
    """What S steps found."""

    update: Array  # B μ, (S, n): θ moves by −η times this
    slopes: Array  # ŷ of the k axes, (S, k)
    errors: Array  # ŷ minus z_iᵀ∇L, (S, k)
    mean: Array  # μ, (S, k)
    shrinkage: Array  # γ̄ = 1 − tr Σ / (k σ_p²), (S,)
    noise_var: Array  # σ_e² for the next step, (S,)


def step(
    rng: np.random.Generator, problem: Quadratic, method: Method, theta: Array, noise_var: Array
) -> Step:
    """Makes the measurements of one step of each copy at θ (S, n) with σ_e² (S,), and filters them."""
    copies, n = theta.shape
    basis = rng.standard_normal((copies, method.k, n))
    gradient = problem.gradient(theta)
    batch = gradient + problem.batch_noise / np.sqrt(n) * rng.standard_normal((copies, n))
    signal = np.einsum("skn,sn->sk", basis, gradient)
    bend = 0.5 * method.eps * np.einsum("skn,n,skn->sk", basis, problem.curvature, basis)
    slopes = np.einsum("skn,sn->sk", basis, batch) + bend
    slopes += problem.slope_noise * rng.standard_normal((copies, method.k))
    mean, variances, noise_var = filtered(method, slopes, noise_var)
    shrinkage = 1 - variances.mean(axis=1) / method.prior_std**2
    update = np.einsum("skn,sk->sn", basis, mean)
    return Step(update, slopes, slopes - signal, mean, shrinkage, noise_var)


def filtered(method: Method, slopes: Array, noise_var: Array) -> tuple[Array, Array, Array]:
    """Returns μ (S, k), the diagonal of Σ (S, k), which has no other entries along axes, and the next σ_e² (S,)."""
    copies, k = slopes.shape
    mean, variances = np.zeros((copies, k)), np.full((copies, k), method.prior_std**2)
    rows = np.arange(copies)
    for tau in range(method.m):
        axis = np.full(copies, tau) if tau < k else variances.argmax(axis=1)
        surprise = slopes[rows, axis] - mean[rows, axis]
        noise_var = (1 - method.noise_ema) * noise_var + method.noise_ema * surprise**2
        gain = variances[rows, axis] / (variances[rows, axis] + noise_var)
        mean[rows, axis] += gain * surprise
        variances[rows, axis] *= 1 - gain
    return mean, variances, noise_var


def sampled(
    problem: Quadratic, method: Method, theta: Array, samples: int, seed: int, warm: int = 0
) -> Step:
    """Returns `samples` independent steps at one θ, (n,), each after `warm` steps that moved only σ_e."""
    rng = np.random.default_rng(seed)
    parts = []
    for count in np.diff([*range(0, samples, 5000), samples]):
        at = np.broadcast_to(theta, (count, len(theta)))
        noise_var = np.full(count, method.noise_std**2)
        for _ in range(warm):
            noise_var = step(rng, problem, method, at, noise_var).noise_var
        parts.append(step(rng, problem, method, at, noise_var))
    return Step(*(np.concatenate(part) for part in zip(*parts, strict=True)))
