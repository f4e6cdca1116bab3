"""Six panels: what the theory predicts, as lines, and what a simulation shows, as points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from analysis.report.style import LOOKS, MUTED, RC
from benchmarks.theory import statements as theory
from benchmarks.theory.simulate import Method, Step, sampled
from benchmarks.theory.statements import CURVATURE, EXACT, NOISY, SMALL, THETA, estimate

LINE, POINT = LOOKS["mezo"].colour, LOOKS["bszo"].colour


def draw(path: Path, seed: int) -> None:
    """Writes the figure."""
    with plt.rc_context(fname=RC):
        figure, axes = plt.subplots(2, 3, figsize=(9.0, 5.4), layout="constrained")
        for panel, ax in zip(PANELS, axes.flat, strict=True):
            panel(ax, seed)
            if panel is not second:
                ax.legend(frameon=False)
        figure.savefig(path, dpi=150)
        plt.close(figure)


def noisy(method: Method, seed: int, warm: int = 0, theta: np.ndarray = THETA) -> Step:
    """Returns steps on NOISY."""
    return sampled(NOISY, method, theta, 4000, seed, warm)


def bias(ax: Axes, seed: int) -> None:
    """Bias of a one-sided difference over ε."""
    eps = [0.01, 0.03, 0.1, 0.3, 1.0]
    found = [sampled(EXACT, Method(1, 1, e), THETA, 4000, seed).errors for e in eps]
    _compare(ax, eps, [e / 2 * CURVATURE.sum() for e in eps], found)
    ax.set(title="Bias of a difference: (ε/2) tr H", xlabel="ε", yscale="log")


def step_mean(ax: Axes, seed: int) -> None:
    """E[Δθ] with fixed and with adaptive σ_e."""
    sigmas = [0.5, 1.0, 2.0, 4.0, 8.0]
    methods = [Method(2, 2, SMALL, noise_std=s) for s in sigmas]
    found = [theory.along(noisy(m, seed)) for m in methods]
    _compare(ax, sigmas, [m.gamma for m in methods], found)
    moving = [theory.along(noisy(replace(m, noise_ema=0.1), seed, 100)) for m in methods]
    ax.plot(sigmas, [v.mean() for v in moving], "s:", color=MUTED, label="adaptive σ_e")
    ax.set(title="E[Δθ] over −ηk∇L: γ", xlabel="σ_e at the start")


def second(ax: Axes, seed: int) -> None:
    """E‖Bμ‖² over k."""
    ks = [1, 2, 4, 8]
    found = [(noisy(Method(k, k, SMALL), seed).update ** 2).sum(1) for k in ks]
    _compare(ax, ks, [theory.second_moment(k, 0.5) for k in ks], found)
    ax.set(title="E‖Bμ‖²", xlabel="k", yscale="log")


def bound(ax: Axes, seed: int) -> None:
    """Mean squared gradient, its bound, and the bound as printed, over γ."""
    k, steps = 4, 400
    methods = [Method(k, k, SMALL, noise_std=s) for s in (0.5, 1.0, 3.0, 10.0)]
    made = [theory.descent(EXACT, method, 20, steps, seed) for method in methods]
    gap, gammas = float(made[0][0][0, 0]), [method.gamma for method in methods]
    derived = 2 * theory.L * (theory.N + k + 1) * gap / (k * steps)
    found = [norms[:-1].mean(axis=0) for _, norms in made]
    _compare(ax, gammas, [derived] * len(gammas), found)
    ax.plot(gammas, [g * derived for g in gammas], "--", color=MUTED, label="as printed")
    ax.set(title="Mean ‖∇L‖² and its bound, T = 400", xlabel="γ", yscale="log")


def passes(ax: Axes, seed: int) -> None:
    """Loss over forward passes, for MeZO and for several k."""
    for k, colour in ((1, LINE), (2, "#B9C7D6"), (4, "#64829F"), (16, POINT)):
        losses, _ = theory.descent(EXACT, Method(k, k, SMALL), 20, 2000 // (1 + k), seed)
        at, label = np.arange(len(losses)) * (1 + k), "MeZO, " * (k == 1) + f"BSZO k = {k}"
        ax.plot(at, losses.mean(axis=1) / losses[0, 0], color=colour, label=label)
    ax.set(title="Loss over forward passes", xlabel="forward passes", yscale="log")


def adapted(ax: Axes, seed: int) -> None:
    """The adaptive σ_e² over the size of the gradient."""
    scales = [0.1, 0.3, 1.0, 3.0]
    method = Method(2, 2, SMALL, noise_ema=0.1, noise_std=3.0)
    squares = [float(((CURVATURE * (scale * THETA)) ** 2).sum()) for scale in scales]
    found = [noisy(method, seed, 100, scale * THETA).noise_var for scale in scales]
    _compare(ax, squares, [s + theory.NOISE for s in squares], found)
    ax.axhline(theory.NOISE, ls="--", color=MUTED, label="σ_ε² + tr Σ")
    ax.set(title="Adaptive σ_e²: noise and signal", xlabel="‖∇L‖²", yscale="log")


PANELS = (bias, step_mean, second, bound, passes, adapted)


def _compare(
    ax: Axes, x: Sequence[float], predicted: Sequence[float], found: Sequence[np.ndarray]
) -> None:
    """Draws a prediction as a line and measurements with their 99 % intervals as points."""
    means, halves = zip(*map(estimate, found), strict=True)
    ax.plot(x, predicted, "-", color=LINE, label="predicted")
    ax.set_xscale("log")
    ax.set_xticks(x, [f"{value:.2g}" for value in x])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.errorbar(x, means, yerr=halves, fmt="o", ms=4, color=POINT, label="measured")
