"""AdaMeZO: Adam on MeZO's estimates, whose moments are made again at each step from the last h seeds and slopes.

    z_t ~ N(0, I);  c_t = (L(θ + ε z_t) − L(θ − ε z_t)) / 2ε
    m = Σ_{j < h} β₁ʲ c_{t−j} z_{t−j};   v = Σ_{j < h} β₂ʲ c²_{t−j} z²_{t−j}
    θ ← θ − η (s m / (√v + δ) + λ θ)        s: `scale`;  λ: `weight_decay`, not on biases and norms
    the first h + 1 steps are MeZO's: θ ← θ − η (c z + λ θ)

Cost: 2 forward passes per step; state: h numbers. Passes over the weights: those of MeZO; the update is one pass, which
draws h directions.

Source: Cai et al. 2026, "AdaMeZO: Adam-style Zeroth-Order Optimizer for LLM Fine-tuning Without Maintaining the
Moments"; weights, s = 100, δ = 1e-5 and MeZO's first steps are those of its released code.

Deviations: those of MeZO. As in the released code the moments have no factors (1 − β) and no correction of their start.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zo.optim.base import Record
from zo.optim.config_variants import AdaMeZOConfig
from zo.optim.mezo import MeZO
from zo.weights.directions import Direction, Stored, Terms
from zo.weights.space import ParameterSpace
from zo.weights.updates import ParameterUpdate


@dataclass(frozen=True, eq=False)
class WindowUpdate(ParameterUpdate):
    """θ moves by a multiple of m / (√v + δ), both made of a window of steps.

    Attributes:
        window: (c, z) of each step, the newest first.
        beta1: β₁.
        beta2: β₂.
        eps: δ.
        coefficient: Of the quotient.
    """

    window: Sequence[tuple[float, Direction]]
    beta1: float
    beta2: float
    eps: float
    coefficient: float

    def terms(self, i: int, p: Tensor) -> Terms:
        """Returns the term of tensor `i`; each direction of the window is drawn once."""
        m, v = torch.zeros_like(p, dtype=torch.float32), torch.zeros_like(p, dtype=torch.float32)
        for j, (c, z) in enumerate(self.window):
            drawn = z.sample(i, p)
            m.add_(drawn, alpha=self.beta1**j * c)
            v.addcmul_(drawn, drawn, value=self.beta2**j * c * c)
        return [(self.coefficient, Stored({i: m.div_(v.sqrt_().add_(self.eps))}))]


class AdaMeZO(MeZO):
    """θ ← θ − η s m / (√v + δ)."""

    config: AdaMeZOConfig

    def __init__(self, params: ParameterSpace, config: AdaMeZOConfig, *, lr: float, seed: int):
        super().__init__(params, config, lr=lr, seed=seed)
        self.numbers["slopes"] = []

    def apply(self, record: Record) -> None:
        """Notes the slope; moves θ as MeZO in the first h + 1 steps, then by the moments of the window."""
        given = self.numbers["slopes"]
        assert isinstance(given, list)
        slopes = [*given, *record][-self.config.window :]
        self.numbers["slopes"] = slopes
        if self.step_index <= self.config.window:
            super().apply(record)
            return
        window = [
            (c, self.direction_at(self.step_index - j)) for j, c in enumerate(reversed(slopes))
        ]
        moments = self.config.beta1, self.config.beta2, self.config.adam_eps
        self.carry_out(lambda lr: WindowUpdate(window, *moments, -lr * self.config.scale))
