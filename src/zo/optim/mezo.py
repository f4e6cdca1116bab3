"""MeZO: zeroth-order SGD with the two-sided SPSA estimate.

    z ~ N(0, I)
    ℓ₊ = L(θ + ε z),  ℓ₋ = L(θ − ε z)
    c = (ℓ₊ − ℓ₋) / 2ε
    θ ← θ − η c z

Cost: 2 forward passes per step; no state. Passes over the weights: 4 (`restore=subtract`).

Source: Malladi et al. 2023, "Fine-Tuning Language Models with Just Forward Passes", Algorithm 1; ZO-SGD of the BSZO
paper.

Deviations: the losses are subtracted as Python floats (the released code divides in the loss's dtype, which overflows
in fp16); the reported loss is (ℓ₊ + ℓ₋)/2, which is L(θ) up to ε², where the released code reports ℓ₊.
"""

from dataclasses import dataclass

from zo.optim.base import Estimate, LossFn, Record, ZOOptimizer
from zo.params import ParamSpace


@dataclass
class MeZOConfig:
    """Settings of MeZO.

    Attributes:
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided difference; False measures (L(θ + ε z) − L(θ)) / ε.
    """

    name: str = "mezo"
    eps: float = 1e-4
    two_sided: bool = True

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, what would be right) of every value out of range."""
        return [] if self.eps > 0 else [("eps", "must be greater than 0")]


class MeZO(ZOOptimizer):
    """θ ← θ − η c z, with c the measured slope along z."""

    def __init__(self, params: ParamSpace, config: MeZOConfig, *, lr: float, seed: int):
        super().__init__(params, config, lr=lr, seed=seed)
        self.eps = config.eps
        self.two_sided = config.two_sided

    @property
    def forwards_per_step(self) -> int:
        """Always 2."""
        return 2

    def estimate(self, loss_fn: LossFn) -> Estimate:
        """Measures the slope c along this step's z."""
        z = self.direction()
        if self.two_sided:
            with self.params.excursion() as probe:
                probe.to([(self.eps, z)])
                plus = loss_fn()
                probe.to([(-self.eps, z)])
                minus = loss_fn()
            slope, loss = (plus - minus) / (2 * self.eps), (plus + minus) / 2
        else:
            loss = loss_fn()
            with self.params.excursion() as probe:
                probe.to([(self.eps, z)])
                slope = (loss_fn() - loss) / self.eps
        return Estimate(loss, (slope,), {"slope": slope})

    def apply(self, record: Record) -> None:
        """θ ← θ − η c z."""
        (slope,) = record
        self.params.add_([(-self.lr * slope, self.direction())])
