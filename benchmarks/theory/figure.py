"""Six panels: what the theory predicts, as lines, and what a simulation shows, as points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from analysis.report.style import LOOKS, RC
from benchmarks.theory.simulate import Method, Quadratic, descend, sampled
from benchmarks.theory.statements import (
    CURVATURE,
    SMALL,
    THETA,
    L,
    N,
    along,
    estimate,
    second_moment,
)

SAMPLES = 4000
LINE, POINT = LOOKS["mezo"].colour, LOOKS["bszo"].colour
NOISY = Quadratic(CURVATURE, batch_noise=3.0, slope_noise=2.0)


def draw(path: Path, seed: int) -> None:
    """Writes the figure."""
    with plt.rc_context(RC):
        figure, axes = plt.subplots(2, 3, figsize=(9.0, 5.4), layout="constrained")
        for panel, ax in zip(PANELS, axes.flat, strict=True):
            panel(ax, seed)
        axes.flat[0].legend(frameon=False)
        figure.savefig(path, dpi=150)
        plt.close(figure)


def bias(ax: Axes, seed: int) -> None:
    """Bias of a one-sided difference over ε."""
    eps = [0.01, 0.03, 0.1, 0.3, 1.0]
    found = [
        estimate(sampled(Quadratic(CURVATURE), Method(1, 1, e), THETA, SAMPLES, seed).errors)
        for e in eps
    ]
    _compare(ax, eps, [e / 2 * CURVATURE.sum() for e in eps], found)
    ax.set(title="Bias of a difference: (ε/2) tr H", xlabel="ε", yscale="log")


def step_mean(ax: Axes, seed: int) -> None:
    """E[Δθ] with fixed and with adaptive σ_e."""
    sigmas = [0.5, 1.0, 2.0, 4.0, 8.0]
    methods = [Method(2, 2, SMALL, noise_std=s) for s in sigmas]
    found = [estimate(along(sampled(NOISY, m, THETA, SAMPLES, seed))) for m in methods]
    _compare(ax, sigmas, [m.gamma for m in methods], found)
    moving = [
        along(sampled(NOISY, replace(m, noise_ema=0.1), THETA, SAMPLES, seed, 100)) for m in methods
    ]
    ax.plot(sigmas, [v.mean() for v in moving], "s:", color="#777777", label="adaptive σ_e")
    ax.set(title="E[Δθ] over −ηk∇L: γ", xlabel="σ_e at the start")
    ax.legend(frameon=False)


def second(ax: Axes, seed: int) -> None:
    """E‖Bμ‖² over k."""
    ks = [1, 2, 4, 8]
    found = [
        estimate((sampled(NOISY, Method(k, k, SMALL), THETA, SAMPLES, seed).update ** 2).sum(1))
        for k in ks
    ]
    _compare(ax, ks, [second_moment(NOISY, k, 0.5) for k in ks], found)
    ax.set(title="E‖Bμ‖²", xlabel="k", yscale="log")


def bound(ax: Axes, seed: int) -> None:
    """Mean squared gradient, its bound, and the bound as printed, over γ."""
    problem, k, steps = Quadratic(CURVATURE), 4, 400
    sigmas = [0.5, 1.0, 3.0, 10.0]
    gammas, derived, printed, found = [], [], [], []
    for sigma in sigmas:
        method = Method(k, k, SMALL, noise_std=sigma)
        lr = 1 / (L * method.gamma * (N + k + 1))
        start = np.broadcast_to(THETA, (20, N))
        losses, norms = descend(problem, method, start, lr, steps, seed)
        gammas.append(method.gamma)
        derived.append(2 * L * (N + k + 1) * float(losses[0, 0]) / (k * steps))
        printed.append(method.gamma * derived[-1])
        found.append(estimate(norms[:-1].mean(axis=0)))
    _compare(ax, gammas, derived, found)
    ax.plot(gammas, printed, "--", color="#777777", label="as printed")
    ax.set(title="Mean ‖∇L‖² and its bound, T = 400", xlabel="γ", yscale="log")
    ax.legend(frameon=False)


def passes(ax: Axes, seed: int) -> None:
    """Loss over forward passes, for MeZO and for several k."""
    for k, label, colour in (
        (1, "MeZO, BSZO k = 1", LINE),
        (2, "BSZO k = 2", "#B9C7D6"),
        (4, "BSZO k = 4", "#64829F"),
        (16, "BSZO k = 16", POINT),
    ):
        method = Method(k, k, SMALL)
        lr = 1 / (L * method.gamma * (N + k + 1))
        start = np.broadcast_to(THETA, (20, N))
        losses, _ = descend(Quadratic(CURVATURE), method, start, lr, 2000 // (1 + k), seed)
        at = np.arange(len(losses)) * (1 + k)
        ax.plot(at, losses.mean(axis=1) / losses[0, 0], color=colour, label=label)
    ax.set(title="Loss over forward passes", xlabel="forward passes", yscale="log")
    ax.legend(frameon=False)


def adapted(ax: Axes, seed: int) -> None:
    """The adaptive σ_e² over the size of the gradient."""
    scales = [0.1, 0.3, 1.0, 3.0]
    squares, found = [], []
    for scale in scales:
        theta = scale * THETA
        squares.append(float(((CURVATURE * theta) ** 2).sum()))
        method = Method(2, 2, SMALL, noise_ema=0.1, noise_std=3.0)
        found.append(estimate(sampled(NOISY, method, theta, SAMPLES, seed, 100).noise_var))
    _compare(ax, squares, [s + 13 for s in squares], found)
    ax.axhline(13, ls="--", color="#777777", label="σ_ε² + tr Σ")
    ax.set(title="Adaptive σ_e²: noise and signal", xlabel="‖∇L‖²", yscale="log")
    ax.legend(frameon=False)


PANELS = (bias, step_mean, second, bound, passes, adapted)


def _compare(
    ax: Axes, x: Sequence[float], predicted: Sequence[float], found: Sequence[tuple[float, float]]
) -> None:
    """Draws a prediction as a line and measurements with their 99 % intervals as points."""
    means, halves = zip(*found, strict=True)
    ax.plot(x, predicted, "-", color=LINE, label="predicted")
    ax.set_xscale("log")
    ax.set_xticks(x, [f"{value:.2g}" for value in x])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.errorbar(x, means, yerr=halves, fmt="o", ms=4, color=POINT, label="measured")
