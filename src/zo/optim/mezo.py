"""MeZO: zeroth-order SGD with the two-sided SPSA estimate; with n > 1 directions per step, n-SPSA.

    for i = 1 … n:
        z_i ~ N(0, I)
        ℓ₊ = L(θ + ε z_i),  ℓ₋ = L(θ − ε z_i)
        c_i = (ℓ₊ − ℓ₋) / 2ε
    θ ← θ − η (1/n Σ_i c_i z_i + λ θ)        λ: `weight_decay`, not on biases and norms

Cost: 2n forward passes per step, one-sided 1 + n; no state. Passes over the weights: 2n + 2
(`restore=subtract`) or 2n + 1 (`merged`), one-sided n + 2 or n + 1.

Source: Malladi et al. 2023, "Fine-Tuning Language Models with Just Forward Passes", Algorithms 1 and 2; ZO-SGD of the
BSZO paper.

Deviations: the losses are subtracted as Python floats (the released code divides in the loss's dtype, which overflows
in fp16); the reported loss is the mean of the measured ones, (ℓ₊ + ℓ₋)/2 at n = 1, which is L(θ) up to ε², where the
released code reports ℓ₊; decay spares biases and norms by module type (the released code by name, which misses some).
"""

import math

from zo.optim.base import Coefficients, Estimate, LossFn, ZOOptimizer
from zo.optim.config_spsa import MeZOConfig
from zo.weights.directions import Terms
from zo.weights.updates import LinearUpdate


class MeZO(ZOOptimizer):
    """θ ← θ − η/n Σ c_i z_i, with c_i the measured slope along z_i."""

    config: MeZOConfig

    def estimate(self, loss_fn: LossFn) -> Estimate:
        """Measures the slopes along this step's directions."""
        along = [self.along(i) for i in range(self.config.n)]
        signs = (1.0, -1.0) if self.config.two_sided else (1.0,)
        places: list[Terms] = [
            [(sign * self.config.eps * c, z) for c, z in terms] for terms in along for sign in signs
        ]
        losses = self.params.measure(loss_fn, [places if self.config.two_sided else [[], *places]])
        if self.config.two_sided:
            pairs = list(zip(losses[::2], losses[1::2], strict=True))
            slopes = [(plus - minus) / (2 * self.config.eps) for plus, minus in pairs]
            loss = sum((plus + minus) / 2 for plus, minus in pairs) / self.config.n
        else:
            loss, *rest = losses
            slopes = [(plus - loss) / self.config.eps for plus in rest]
        scalars = {"slope": sum(slopes) / self.config.n}
        if self.config.n > 1:
            scalars["slope_rms"] = math.hypot(*slopes) / math.sqrt(self.config.n)
        return Estimate(loss, tuple(slopes), scalars)

    def apply(self, coefficients: Coefficients) -> None:
        """θ ← θ − η (1/n Σ c_i z_i + λ θ)."""
        n, terms = len(coefficients), [(c, self.direction(i)) for i, c in enumerate(coefficients)]
        self.apply_update(lambda lr: LinearUpdate([(-lr * c / n, z) for c, z in terms]))

    def along(self, i: int) -> Terms:
        """Returns direction `i` of the current step as the sum that probes are displaced along."""
        return [(1.0, self.direction(i))]
