"""ZO-Momentum: MeZO's estimate of the gradient in SGD with momentum.

    z_i ~ N(0, I);  c_i = (L(θ + ε z_i) − L(θ − ε z_i)) / 2ε
    m ← β m + 1/n Σ_i c_i z_i                  m = 0 at the start
    θ ← θ − η (m + λ θ)                        λ: `weight_decay`, not on biases and norms

Cost: 2n forward passes per step; state: m, once the memory of θ in its dtype, or 4 bytes per parameter in float32.
Passes over the weights: those of MeZO, and one over m that draws the noise.

Source: ZO-SGD-MMT of Zhang et al. 2024, "Revisiting Zeroth-Order Optimization for Memory-Efficient LLM Fine-Tuning: A
Benchmark" (ZO-Bench), whose code feeds c z to torch's SGD with `momentum`.

Deviations: those of MeZO. Weight decay is decoupled. A step is 1/(1 − β) times as long as MeZO's once m has settled: η
goes with that, as in torch.
"""

from zo.optim.base import Coefficients, state_dtype
from zo.optim.config_spsa import ZOMomentumConfig
from zo.optim.mezo import MeZO
from zo.weights.space import ParameterSpace
from zo.weights.updates import ElementwiseUpdate


class ZOMomentum(MeZO):
    """θ ← θ − η m."""

    config: ZOMomentumConfig

    def __init__(self, params: ParameterSpace, config: ZOMomentumConfig, *, lr: float, seed: int):
        super().__init__(params, config, lr=lr, seed=seed)
        self.state["m"] = params.full(0.0, state_dtype(config.state_dtype))

    def apply(self, coefficients: Coefficients) -> None:
        """Moves m by the estimate, and θ by −η m."""
        gradient = [(c / self.config.n, self.direction(i)) for i, c in enumerate(coefficients)]
        m, beta = self.state["m"], self.config.momentum
        self.apply_update(
            lambda lr: ElementwiseUpdate(lambda at: at.move(m, gradient, 1 - beta), -lr)
        )
