"""ZO-Sign: MeZO's step, of which only each entry's sign counts.

    z_i ~ N(0, I);  c_i = (L(θ + ε z_i) − L(θ − ε z_i)) / 2ε
    θ ← θ − η (sign(Σ_i c_i z_i) + λ θ)        λ: `weight_decay`, not on biases and norms

Cost: 2n forward passes per step; no state. Passes over the weights: those of MeZO. η is the length of the step in every
entry, whatever the slope.

Source: Liu et al. 2019, "signSGD via Zeroth-Order Oracle", Algorithm 1; ZO-SignSGD of Zhang et al. 2024, "Revisiting
Zeroth-Order Optimization for Memory-Efficient LLM Fine-Tuning: A Benchmark" (ZO-Bench).

Deviations: those of MeZO. ZO-Bench's code moves by sign(c) z, which keeps the sizes of z's entries; the paper's
formula, and this file, take the sign of every entry. Liu et al. measure one-sided slopes along directions on the unit
sphere.
"""

from zo.optim.base import Coefficients
from zo.optim.mezo import MeZO
from zo.weights.updates import ElementwiseUpdate


class ZOSign(MeZO):
    """θ ← θ − η sign(Σ c_i z_i)."""

    def apply(self, coefficients: Coefficients) -> None:
        """Moves θ by η in every entry."""
        slopes = [(c, self.direction(i)) for i, c in enumerate(coefficients)]
        self.apply_update(lambda lr: ElementwiseUpdate(lambda at: at.sum(slopes).sign(), -lr))
