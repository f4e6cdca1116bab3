"""ZO-Conservative: of θ and the two points a MeZO step ahead and behind, the one with the least loss.

    z_i ~ N(0, I);  c_i = (L(θ + ε z_i) − L(θ − ε z_i)) / 2ε;  g = 1/n Σ_i c_i z_i
    s = argmin L(θ − s η g) over s = 0, 1, −1        the first of equals
    θ ← θ − η (s g + λ θ)                            λ: `weight_decay`, not on biases and norms

Cost: 2n + 3 forward passes per step; no state. Passes over the weights: those of MeZO and one per candidate.

Source: ZO-SGD-Cons of Zhang et al. 2024, "Revisiting Zeroth-Order Optimization for Memory-Efficient LLM Fine-Tuning: A
Benchmark" (ZO-Bench).

Deviations: those of MeZO; L(θ) is reported. ZO-Bench's code makes the candidate steps in place; here each is a probe,
so that θ comes back from it as from any other. `weight_decay` is no part of the candidates.
"""

from dataclasses import dataclass

from torch import Tensor

from zo.optim.base import Coefficients, Estimate, LossFn
from zo.optim.mezo import MeZO
from zo.weights.directions import Direction, Terms

SIDES = (0.0, 1.0, -1.0)
"""Candidate steps, in multiples of −η g; of equal losses the first wins."""


@dataclass(frozen=True)
class _Weighted:
    """A direction with a factor of its own for every tensor."""

    z: Direction
    factors: tuple[float, ...]

    def sample(self, i: int, p: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.z.sample(i, p, rows) * self.factors[i]


class ZOConservative(MeZO):
    """θ ← θ − s η g."""

    def estimate(self, loss_fn: LossFn) -> Estimate:
        """Measures the slopes, and then the candidate steps."""
        measured = super().estimate(loss_fn)
        points = [self._step(-side, measured.coefficients) for side in SIDES]
        losses = self.params.measure(loss_fn, [points])
        side = SIDES[losses.index(min(losses))]
        coefficients = tuple(side * c for c in measured.coefficients)
        return Estimate(losses[0], coefficients, {**measured.scalars, "side": side})

    def _step(self, sign: float, slopes: Coefficients) -> Terms:
        """Returns a step of ± η g, of each group's own η."""
        if sign == 0.0:
            return []
        scale, _ = self.next_step_scale(slopes)
        rates = [group.lr * scale for group in self.rates]
        slopes = tuple(sign * c / self.config.n for c in slopes)
        if len(rates) == 1:
            return [(rates[0] * c, self.direction(i)) for i, c in enumerate(slopes)]
        of = tuple(rates[group] for group in self.group_of)
        return [(c, _Weighted(self.direction(i), of)) for i, c in enumerate(slopes)]
