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

import torch
from torch import Tensor

from zo.optim.base import Coefficients
from zo.optim.config_spsa import AdaMeZOConfig
from zo.optim.mezo import MeZO
from zo.weights.directions import Stored, Terms
from zo.weights.space import ParameterSpace
from zo.weights.updates import TensorwiseUpdate


class AdaMeZO(MeZO):
    """θ ← θ − η s m / (√v + δ)."""

    config: AdaMeZOConfig

    def __init__(self, params: ParameterSpace, config: AdaMeZOConfig, *, lr: float, seed: int):
        super().__init__(params, config, lr=lr, seed=seed)
        self.series["slopes"] = []

    def apply(self, coefficients: Coefficients) -> None:
        """Notes the slope; moves θ as MeZO in the first h + 1 steps, then by the moments of the window."""
        slopes = [*self.series["slopes"], *coefficients][-self.config.window :]
        self.series["slopes"] = slopes
        if self.step_index <= self.config.window:
            super().apply(coefficients)
            return
        t, last = self.step_index, enumerate(reversed(slopes))
        window = [(c, self.direction_at(t - j)) for j, c in last]

        def terms(lr: float, i: int, p: Tensor) -> Terms:
            m, v = (torch.zeros_like(p, dtype=torch.float32) for _ in range(2))
            for j, (c, z) in enumerate(window):
                drawn = z.sample(i, p)
                m.add_(drawn, alpha=self.config.beta1**j * c)
                v.addcmul_(drawn, drawn, value=self.config.beta2**j * c * c)
            quotient = m.div_(v.sqrt_().add_(self.config.adam_eps))
            return [(-lr * self.config.scale, Stored({i: quotient}))]

        self.apply_update(lambda lr: TensorwiseUpdate(terms, lr))
