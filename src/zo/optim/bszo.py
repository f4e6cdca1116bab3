"""BSZO: the slopes along k random directions, filtered into a posterior whose mean is the step.

    z_1 … z_k ~ N(0, I);  μ = 0, Σ = σ_p² I;  f₀ = L(θ)
    for τ = 1 … m:
        τ ≤ k: d = e_τ,  y = (L(θ + ε z_τ) − f₀) / ε
        τ > k: d = the widest axis of Σ,  y = the value cached for it             (BSZO)
               d = the top eigenvector of Σ,  y = (L(θ + ε Σ d_i z_i) − f₀) / ε   (BSZO-B)
        r = (y − dᵀμ)/‖d‖;  σ_e² ← (1 − α) σ_e² + α r²
        K = Σd / (dᵀΣd + σ_e²‖d‖²);  μ ← μ + K (y − dᵀμ);  Σ ← Σ − K dᵀΣ
    θ ← θ − η (Σ_i μ_i z_i + λ θ)        λ: `weight_decay`, not on biases and norms; 0 in the paper

Cost: 1 + k forward passes per step (BSZO), 1 + m (BSZO-B); state: one float. Passes over the weights: 2k + 1 in
BSZO (`restore=subtract`; the k directions of the update are one pass), k + 1 with `merged`; with m for k in BSZO-B.

Source: Feng and Huang, "Robust and Efficient Zeroth-Order LLM Fine-Tuning via Adaptive Bayesian Subspace Optimizer",
Algorithm 1 (BSZO) and Algorithm 2 (BSZO-B); reference/deviations.md tells paper, released code and this file apart.

Deviations: as the released code, σ_e adapts after every observation and persists over steps, with a floor of 0.1 of
its start value, and Σ gets 1e-10 I after each observation (Algorithm 1 adapts σ_e only when τ > k: `noise_update:
extra`; neither paper algorithm has a floor: `noise_floor: 0`). With `two_sided` f₀ is not measured, since nothing
uses it; the reported loss is then the mean of the measured ones.
"""

import math

import numpy as np

from zo.optim.base import Coefficients, Estimate, LossFn, ZOOptimizer
from zo.optim.config_bszo import BSZOConfig
from zo.optim.posterior import Posterior, Vector
from zo.weights.directions import Terms
from zo.weights.restore import Excursion
from zo.weights.space import ParameterSpace
from zo.weights.updates import LinearUpdate

NEGLIGIBLE = 1e-10
"""Coefficients at most this large, in absolute value, are not worth a pass over the weights."""


SMALL = 100_000
"""Trained numbers below which the paper's σ_p, whose σ_e adapts to the slopes, passes less than a tenth of them on."""


class BSZO(ZOOptimizer):
    """θ ← θ − η B μ, with μ the posterior mean of the slopes along the columns of B."""

    config: BSZOConfig
    unsaved = ("k", "m", "prior_std", "noise_std_start")

    def __init__(self, params: ParameterSpace, config: BSZOConfig, *, lr: float, seed: int):
        super().__init__(params, config, lr=lr, seed=seed)
        self.k = config.k
        self.m = config.k + 1 if config.m is None else config.m
        auto = math.sqrt(params.numel / 1e6)
        self.prior_std = auto if config.prior_std is None else config.prior_std
        self.noise_std_start = auto if config.noise_std is None else config.noise_std
        if config.prior_std is None and config.adaptive_noise and params.numel < SMALL:
            self.advice.append(
                f"prior_std: √(n / 10⁶) is {auto:.2g} for n = {params.numel:,} trained numbers, so a step follows about"
                f" {auto**2:.1g} of slopes of size 1: the weights hardly move; give prior_std=1.0"
            )
        self.numbers["noise_var"] = self.noise_std_start**2  # the running σ_e², without the floor

    def estimate(self, loss_fn: LossFn) -> Estimate:
        """Measures slopes along the axes and where Σ is widest, and filters them into μ."""
        posterior = Posterior(self.k, self.prior_std)
        ahead = self.k if self.config.adaptive_sampling else self.m  # do not depend on Σ
        axes = np.eye(self.k)[np.arange(ahead) % self.k]
        at_theta: list[Excursion] = [] if self.config.two_sided else [[[]]]
        excursions = [*at_theta, *(self._points(d) for d in axes)]
        losses = self.params.measure(loss_fn, excursions)
        slopes = self._slopes(losses, losses[len(at_theta) :])
        residuals: list[float] = []
        noise_var, d, y = self.numbers["noise_var"], np.zeros(self.k), 0.0
        for tau in range(self.m):
            extra = tau >= self.k
            if extra and self.config.noise_update == "extra":
                noise_var = self._adapted(noise_var, posterior.residual(d, y))  # of the last pair
            d, axis = self._sampling_direction(extra, tau, posterior)
            if tau < ahead:
                y = slopes[tau]
            elif axis is not None:
                y = slopes[axis]
            else:
                measured = self.params.measure(loss_fn, [self._points(d)])
                losses += measured
                (y,) = self._slopes(losses, measured)
            residuals.append(posterior.residual(d, y))
            if self.config.noise_update == "every":
                noise_var = self._adapted(noise_var, residuals[-1])
            posterior.observe(d, y, self._noise_std(noise_var))
        scalars = {
            "noise_std": self._noise_std(noise_var),
            "shrinkage": posterior.shrinkage,
            "posterior_trace": float(np.trace(posterior.cov)),
            "residual_rms": math.sqrt(sum(r * r for r in residuals) / len(residuals)),
            "mu_norm": float(np.linalg.norm(posterior.mean)),
        }
        loss = float(np.mean(losses)) if self.config.two_sided else losses[0]
        coefficients = (*(float(mu) for mu in posterior.mean), noise_var)
        return Estimate(loss, coefficients, scalars)

    def apply(self, coefficients: Coefficients) -> None:
        """θ ← θ − η (Σ_i μ_i z_i + λ θ), in one pass; the last scalar is the running σ_e²."""
        *mean, self.numbers["noise_var"] = coefficients
        self.apply_update(
            lambda lr: LinearUpdate(
                [(-lr * mu, self.direction(i)) for i, mu in enumerate(mean) if abs(mu) > NEGLIGIBLE]
            )
        )

    def slope(self, coefficients: Coefficients) -> float:
        """Returns the mean of the k coefficients."""
        return sum(coefficients[:-1]) / self.k

    def _sampling_direction(
        self, extra: bool, tau: int, posterior: Posterior
    ) -> tuple[Vector, int | None]:
        """Returns the subspace direction d, (k,), of measurement tau, and its axis if it is one."""
        adaptive = extra and self.config.adaptive_sampling
        if adaptive and not self.config.reuse_probes:
            return posterior.widest_direction(), None
        axis = posterior.widest_axis() if adaptive else tau % self.k
        return np.eye(self.k)[axis], axis

    def _points(self, d: Vector) -> Excursion:
        """Returns where the slope along B d is measured."""
        eps = self.config.eps
        plus, minus = self._terms(eps * d), self._terms(-eps * d)
        return [plus, minus] if self.config.two_sided else [plus]

    def _slopes(self, losses: list[float], measured: list[float]) -> list[float]:
        """Returns the slopes of losses at `_points`; one-sided, `losses` begins with f₀."""
        eps = self.config.eps
        if self.config.two_sided:
            pairs = zip(measured[::2], measured[1::2], strict=True)
            found = [(plus - minus) / (2 * eps) for plus, minus in pairs]
        else:
            found = [(plus - losses[0]) / eps for plus in measured]
        return [self._finite("slope", y) for y in found]

    def _terms(self, coefficients: Vector) -> Terms:
        eps = self.config.eps
        return [
            (float(c), self.direction(i))
            for i, c in enumerate(coefficients)
            if abs(c) > NEGLIGIBLE * eps
        ]

    def _adapted(self, noise_var: float, residual: float) -> float:
        if not self.config.adaptive_noise:
            return noise_var
        alpha = self.config.noise_ema
        return (1 - alpha) * noise_var + alpha * residual**2

    def _noise_std(self, noise_var: float) -> float:
        return max(self.config.noise_floor * self.noise_std_start, math.sqrt(noise_var))
