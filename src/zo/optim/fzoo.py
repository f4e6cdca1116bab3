"""FZOO: one-sided slopes along N random signs, and a step that their losses' standard deviation scales.

    f₀ = L(θ);  for i = 1 … N:  u_i random signs;  ℓ_i = L(θ + ε u_i)
    σ = √(Σ_i (ℓ_i − mean ℓ)² / (N − 1))
    θ ← θ − η (1/N Σ_i (ℓ_i − f₀)/σ u_i + λ θ)        λ: `weight_decay`, not on biases and norms

Cost: 1 + N forward passes per step; no state. Passes over the weights: 2N + 1 (`subtract`), N + 1 (`merged`); the
update of all N is one. A multiple of the loss makes the same step.

Source: Dang et al. 2026, "FZOO: Fast Zeroth-Order Optimizer for Fine-Tuning Large Language Models towards Adam-Scale
Speed"; N, ε and η of its released code.

Deviations: the paper divides by ε, its released code does not; η is the code's, the paper's over ε. σ has N − 1 as in
the paper; the released code's has N, so that its steps are √(N / (N − 1)) as long (docs/reference/deviations.md).
Losses that tie, as in half precision, make σ 0 and the released code's step infinite: where σ is at most `std_floor`
times |f₀|, the step is left out, and `std` in the log says so.
"""

import math

from zo.optim.base import Estimate, LossFn
from zo.optim.config_spsa import FZOOConfig
from zo.optim.mezo import MeZO
from zo.weights.directions import Terms


class FZOO(MeZO):
    """θ ← θ − η/N Σ (ℓ_i − f₀)/σ u_i."""

    config: FZOOConfig

    def estimate(self, loss_fn: LossFn) -> Estimate:
        """Measures f₀ and the N losses, and scales their differences by their standard deviation."""
        points: list[Terms] = [[(self.config.eps, self.direction(i))] for i in range(self.config.n)]
        here, *losses = self.params.measure(loss_fn, [[[]], *([point] for point in points)])
        mean = sum(losses) / self.config.n
        std = math.sqrt(sum((loss - mean) * (loss - mean) for loss in losses) / (self.config.n - 1))
        known = not std <= self.config.std_floor * abs(here)
        coefficients = tuple((loss - here) / std if known else 0.0 for loss in losses)
        return Estimate(here, coefficients, {"std": std, "slope": (mean - here) / self.config.eps})
