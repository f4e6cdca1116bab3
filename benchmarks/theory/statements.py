"""The statements of the paper's theory, each with what it predicts and what a simulation shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.theory.simulate import Array, Method, Quadratic, Step, descend, sampled

N = 100
"""Dimension of θ."""

CURVATURE = np.linspace(0.1, 1.0, N)
L = float(CURVATURE.max())
THETA = np.ones(N)
SMALL = 1e-6
"""An ε at which the curvature's share of a slope can be left out."""

Z99 = 2.576
TOLERANCE = 0.05
"""Of ratios of speeds, which the theory gives to leading order."""


@dataclass(frozen=True)
class Row:
    """A statement under one condition.

    Attributes:
        statement: In the paper's symbols.
        where: In the paper; `ours` if it is our correction or addition.
        condition: What was simulated.
        predicted: By the statement.
        measured: By the simulation.
        half_width: Of the 99 % interval of `measured`.
        kind: `equal`; or `at most` or `at least`, where `predicted` is a bound.
        tolerance: Relative difference that still counts as equal, for statements of leading order.
    """

    statement: str
    where: str
    condition: str
    predicted: float
    measured: float
    half_width: float
    kind: str = "equal"
    tolerance: float = 0.0

    @property
    def verdict(self) -> str:
        """Returns `seen`, `not seen`, or `open` where the interval reaches over a bound."""
        over = self.measured - self.predicted
        if self.kind == "equal":
            allowed = self.half_width + max(self.tolerance, 1e-9) * abs(self.predicted)
            return "seen" if abs(over) <= allowed else "not seen"
        if self.kind == "at least":
            over = -over
        if over <= -self.half_width:
            return "seen"
        return "not seen" if over > self.half_width else "open"


def estimate(values: Array) -> tuple[float, float]:
    """Returns the mean of independent values and the half width of its 99 % interval."""
    values = np.asarray(values).reshape(-1)
    return float(values.mean()), float(Z99 * values.std(ddof=1) / np.sqrt(len(values)))


def rows(samples: int, seed: int, done: Callable[[], None] = lambda: None) -> list[Row]:
    """Checks every statement.

    Args:
        samples: Steps behind every expectation.
        seed: Of all draws.
        done: Called after each group of statements.
    """
    found = []
    for group in GROUPS:
        found += group(samples, seed)
        done()
    return found


def slopes(samples: int, seed: int) -> list[Row]:
    """Bias and variance of a one-sided difference."""
    steep = Quadratic(CURVATURE)
    noisy = Quadratic(CURVATURE, batch_noise=3.0, slope_noise=2.0)
    one = Method(k=1, m=1)
    bias = sampled(steep, replace(one, eps=0.1), THETA, samples, seed).errors
    silent = Quadratic(CURVATURE, batch_noise=3.0)
    batch = sampled(silent, replace(one, eps=SMALL), THETA, samples, seed).errors
    made = [
        Row(
            "E[ŷ] − zᵀg = (ε/2) tr H, which O(εL) stands for",
            "section 3.2",
            "ε = 0.1",
            0.1 / 2 * CURVATURE.sum(),
            *estimate(bias),
        ),
        Row("E Var(ŷ | B) = tr Σ", "appendix B.1", "τ = 3, ε → 0", 9.0, *estimate(batch**2)),
    ]
    for eps, words in ((SMALL, "ε → 0"), (0.3, "ε = 0.3")):
        errors = sampled(noisy, replace(one, eps=eps), THETA, samples, seed).errors
        made.append(
            Row(
                "σ_e² = σ_ε² + tr Σ",
                "appendix B.2",
                f"τ = 3, σ_ε = 2, {words}",
                13.0,
                *estimate(errors**2),
            )
        )
    bend = 0.3**2 / 4 * (CURVATURE.sum() ** 2 + 2 * (CURVATURE**2).sum())
    return [
        *made,
        Row(
            "σ_e² = σ_ε² + tr Σ + (ε²/4)((tr H)² + 2 tr H²)",
            "ours",
            "τ = 3, σ_ε = 2, ε = 0.3",
            13.0 + bend,
            made[-1].measured,
            made[-1].half_width,
        ),
    ]


def posterior(samples: int, seed: int) -> list[Row]:
    """The covariance after the k axes."""
    made = []
    for noise_std in (1.0, 3.0):
        method = Method(k=2, m=2, noise_std=noise_std)
        found = sampled(Quadratic(CURVATURE), method, THETA, 2, seed)
        width = (1 - float(found.shrinkage[0])) * method.prior_std**2
        condition = f"σ_p = 1, σ_e = {noise_std:g}"
        made.append(Row("Σ = γI", "section 3.3", condition, method.gamma, width, 0.0))
        if noise_std != 1:
            right = method.gamma * noise_std**2
            made.append(Row("Σ = γσ_e²I", "ours", condition, right, width, 0.0))
    return made


def moments(samples: int, seed: int) -> list[Row]:
    """Mean and second moment of one step with fixed σ_e."""
    problem = Quadratic(CURVATURE, batch_noise=3.0, slope_noise=2.0)
    made = []
    for k in (1, 4):
        method = Method(k=k, m=k, eps=SMALL)
        found = sampled(problem, method, THETA, samples, seed)
        condition = f"k = {k}, fixed σ_e"
        made.append(
            Row("E[Δθ] = −ηγk ∇L", "section 3.3", condition, method.gamma, *estimate(along(found)))
        )
        made.append(
            Row(
                "E‖Bμ‖² = γ²k(ñ(‖g‖² + tr Σ) + nσ_ε²)",
                "appendix B.3",
                condition,
                second_moment(problem, k, method.gamma),
                *estimate((found.update**2).sum(axis=1)),
            )
        )
    return made


def adaptive(samples: int, seed: int) -> list[Row]:
    """Observations beyond the k-th, and a σ_e that follows the residuals."""
    problem = Quadratic(CURVATURE, batch_noise=3.0, slope_noise=2.0)
    fixed = Method(k=2, m=3, eps=SMALL, prior_std=1.0, noise_std=3.0)
    moving = replace(fixed, noise_ema=0.1)
    made = []
    for method, words, warm in (
        (fixed, "k = 2, m = 3, fixed σ_e", 0),
        (moving, "k = 2, m = 3, adaptive σ_e", 100),
    ):
        found = sampled(problem, method, THETA, samples, seed, warm)
        shrunk = float(found.shrinkage.mean())
        made.append(Row("E[μ] = E[Γ_m] g̃", "appendix B.5", words, shrunk, *estimate(along(found))))
        moment = second_moment(problem, method.k, shrunk)
        made.append(
            Row(
                "E‖Bμ‖² with γ̄ for γ",
                "appendix B.6",
                words,
                moment,
                *estimate((found.update**2).sum(axis=1)),
            )
        )
        smallest = float(found.shrinkage.min())
        made.append(
            Row("γ ≤ γ̄", "appendix B.6", words, method.gamma, smallest, 0.0, kind="at least")
        )
    axes = sampled(problem, replace(moving, m=2), THETA, samples, seed, warm=100)
    noise = estimate(axes.noise_var)
    square = float((problem.gradient(THETA[None]) ** 2).sum())
    words = "k = m = 2, adaptive σ_e"
    return [
        *made,
        Row("adaptive: E σ_e² = σ_ε² + tr Σ, the noise", "section 4", words, 13.0, *noise),
        Row(
            "adaptive: E σ_e² = ‖g‖² + σ_ε² + tr Σ, noise and signal",
            "ours",
            words,
            square + 13.0,
            *noise,
        ),
    ]


def convergence(samples: int, seed: int) -> list[Row]:
    """The bound on the mean squared gradient."""
    steps, copies = 400, 50
    start = np.broadcast_to(THETA, (copies, N))
    made = []
    for batch_noise, noise_std, k in ((3.0, 1.0, 4), (0.0, 1.0, 4), (0.0, 10.0, 4)):
        problem = Quadratic(CURVATURE, batch_noise=batch_noise)
        method = Method(k=k, m=k, eps=SMALL, noise_std=noise_std)
        lr = 1 / (L * method.gamma * (N + k + 1))
        losses, norms = descend(problem, method, start, lr, steps, seed)
        mean = estimate(norms[:-1].mean(axis=0))
        gap = float(losses[0, 0])
        derived = 2 * L * (N + k + 1) * gap / (k * steps) + batch_noise**2
        printed = 2 * L * method.gamma * (N + k + 1) * gap / (k * steps) + batch_noise**2
        condition = f"k = {k}, τ = {batch_noise:g}, γ = {method.gamma:.2g}, T = {steps}"
        made.append(
            Row("bound at η = 1/(Lγñ)", "section 4", condition, derived, *mean, kind="at most")
        )
        made.append(
            Row(
                "the same as printed, with a γ in 2LγñΔ₀/(kT)",
                "section 4",
                condition,
                printed,
                *mean,
                kind="at most",
            )
        )
    return made


def speed(samples: int, seed: int) -> list[Row]:
    """Steps and forward passes to a hundredth of the first loss, over MeZO's."""
    mezo = steps_to(1, seed=seed)  # a two-sided difference is the same slope where ε → 0
    made = []
    for k in (1, 4, 16):
        fewer = estimate(mezo[:, None] / steps_to(k, seed=seed + k)[None])
        exact = k * (N + 2) / (N + k + 1)
        passes = tuple(value * 2 / (1 + k) for value in fewer)
        words = f"k = {k}, n = {N}"
        made += [
            Row(
                "k times fewer steps than MeZO",
                "section 4",
                words,
                float(k),
                *fewer,
                tolerance=TOLERANCE,
            ),
            Row("k(n + 2)/ñ times fewer steps", "ours", words, exact, *fewer, tolerance=TOLERANCE),
            Row(
                "2k(n + 2)/((k + 1)ñ) times fewer forward passes",
                "ours",
                words,
                exact * 2 / (1 + k),
                *passes,
                tolerance=TOLERANCE,
            ),
        ]
    return made


def steps_to(k: int, share: float = 0.01, seed: int = 0) -> Array:
    """Returns each copy's steps until the loss is `share` of the first, at η = 1/(Lγñ)."""
    method = Method(k=k, m=k, eps=SMALL)
    lr = 1 / (L * method.gamma * (N + k + 1))
    start = np.broadcast_to(THETA, (50, N))
    losses, _ = descend(Quadratic(CURVATURE), method, start, lr, 3000 // k + 200, seed)
    reached = losses <= share * losses[0]
    if not reached.any(axis=0).all():
        raise RuntimeError(f"k={k}: the loss did not fall to {share} of the first in all copies")
    return np.asarray(reached.argmax(axis=0), dtype=float)


def along(found: Step) -> Array:
    """Returns ⟨Bμ, ∇L⟩ / (k‖∇L‖²) of each step at THETA, (S,): its mean is the factor of −ηk∇L."""
    gradient = CURVATURE * THETA
    return np.asarray(
        found.update @ gradient / (found.slopes.shape[1] * float(gradient @ gradient))
    )


def second_moment(problem: Quadratic, k: int, gamma: float) -> float:
    """Returns γ²k(ñ(‖g‖² + tr Σ) + nσ_ε²) at THETA."""
    square = float((problem.gradient(THETA[None]) ** 2).sum())
    wide = (N + k + 1) * (square + problem.batch_noise**2)
    return gamma**2 * k * (wide + N * problem.slope_noise**2)


GROUPS = (slopes, posterior, moments, adaptive, convergence, speed)
