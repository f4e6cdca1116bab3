"""HiZOO: MeZO with a running estimate H of the Hessian's diagonal, which scales probe and step.

    H = 1 at the start
    z ~ N(0, I);  ℓ₀ = L(θ);  ℓ₊ = L(θ + ε z/√H);  ℓ₋ = L(θ − ε z/√H)
    H ← (1 − s) H + s |ℓ₊ + ℓ₋ − 2 ℓ₀| / (2ε²) · H z²
    θ ← θ − η ((ℓ₊ − ℓ₋) / 2ε · z/√H + λ θ)      with the new H;  λ: `weight_decay`, not on biases and norms

Cost: 3 forward passes per step; state: H, once the memory of θ in its dtype, or 4 bytes per parameter in float32.
Passes over the weights: 4 (`restore=subtract`), 3 (`merged`), the last of them over H, too; under Philox noise each
reads and writes once what it moves.

Source: Zhao et al. 2025, "Second-Order Fine-Tuning without Pain for LLMs: A Hessian Informed Zeroth-Order Optimizer",
Algorithm 1, in the order of its released code and that of the BSZO paper's.

At the default s = 1e-8 (the paper's) H hardly moves from 1, and HiZOO's losses are MeZO's to the printed digits.

Deviations: `state_dtype: param` takes the products of the update of H one after another in the parameters' dtype, as
the released code does: in half precision they fall below the smallest number, or below half a unit of H = 1, and H
practically never moves. `state_dtype: float32` multiplies s/(2ε²) out first, and it moves. The released code makes a
fourth forward pass, only to report a loss; here ℓ₀ is reported. It decays biases and norms, too. Its smoothing
schedules are constants, evaluated once per epoch; `cosine` is ours: s falls from `hessian_smooth` to 0 over
`smooth_steps`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from zo.noise.program import Value
from zo.optim.base import Coefficients, Estimate, LossFn, ZOOptimizer, state_dtype
from zo.optim.config_spsa import HiZOOConfig
from zo.weights.directions import Direction, Preconditioned, Terms
from zo.weights.programs import ProgramValues
from zo.weights.space import ParameterSpace
from zo.weights.updates import ParameterUpdate


class HiZOOScalars(NamedTuple):
    """Scalars of a step of HiZOO.

    Attributes:
        step: Coefficient of z/√H, with the H that is written, by which θ then moves.
        difference: |ℓ₊ + ℓ₋ − 2 ℓ₀|.
        smooth: s.
        divisor: 2ε².
        in_float32: Whether the arithmetic on H is float32, not its own dtype's.
    """

    step: float
    difference: float
    smooth: float
    divisor: float
    in_float32: bool


@dataclass(frozen=True, eq=False)
class HiZOOUpdate(ParameterUpdate):
    """H moves, then θ by a multiple of z/√H.

    Attributes:
        z: Direction of probe and step.
        h: H, one tensor per trainable one.
        scalars: Of the step.
    """

    z: Direction
    h: Sequence[Tensor]
    scalars: HiZOOScalars

    def terms(self, i: int, p: Tensor) -> Terms:
        """Moves H for tensor `i` and returns what θ moves by."""
        step, difference, s, divisor, in_float32 = self.scalars
        h, z = self.h[i], self.z.sample(i, p)
        if in_float32:
            gain = difference * s / divisor
            h.addcmul_(h, z.square_().mul_(gain).sub_(s))  # H + H (gain z² − s)
        else:
            z = z.to(h.dtype)
            new = (h * z).mul_(z).mul_(difference).mul_(s).div_(divisor)
            h.mul_(1 - s).add_(new)
        return [(step, Preconditioned(self.z, self.h))]

    def change(self, at: ProgramValues, x: Value) -> Value:
        """As `ParameterUpdate.change`: moves H, whose products are each rounded to its dtype unless it is float32."""
        step, difference, s, divisor, in_float32 = self.scalars
        z, h, dtype = at.sample(self.z), at.load(self.h), at.array(self.h)
        if in_float32:
            h = h.add(h.mul(z.mul(z).mul(difference * s / divisor).add(-s)))
        else:
            new = h
            for factor in (z.rounded(dtype), z.rounded(dtype), difference, s):
                new = new.mul(factor).rounded(dtype)
            new = new.div(divisor).rounded(dtype)
            h = h.mul(1 - s).rounded(dtype).add(new).rounded(dtype)
        at.store(self.h, h)
        return x.plus(z.div(h.sqrt()), step)

    @property
    def along(self) -> Terms:
        """As `ParameterUpdate.along`."""
        return [(1.0, Preconditioned(self.z, self.h))]


class HiZOO(ZOOptimizer):
    """θ ← θ − η c z/√H."""

    config: HiZOOConfig

    def __init__(self, params: ParameterSpace, config: HiZOOConfig, *, lr: float, seed: int):
        super().__init__(params, config, lr=lr, seed=seed)
        self.state["h"] = params.full(1.0, state_dtype(config.state_dtype))

    @property
    def smooth(self) -> float:
        """The current step's s."""
        if self.config.smooth_schedule == "constant":
            return self.config.hessian_smooth
        done = min(self.step_index / self.config.smooth_steps, 1.0)
        return self.config.hessian_smooth * (1 + math.cos(math.pi * done)) / 2

    def estimate(self, loss_fn: LossFn) -> Estimate:
        """Measures slope and curvature along z/√H."""
        z = Preconditioned(self.direction(), self.state["h"])
        pair = [[(self.config.eps, z)], [(-self.config.eps, z)]]
        here, plus, minus = self.params.measure(loss_fn, [[[]], pair])
        slope = (plus - minus) / (2 * self.config.eps)
        bend = abs(plus + minus - 2 * here)
        scalars = {"slope": slope, "curvature": bend / self.config.eps**2, "smooth": self.smooth}
        return Estimate(here, (slope, bend), scalars)

    def apply(self, coefficients: Coefficients) -> None:
        """Moves H by |ℓ₊ + ℓ₋ − 2 ℓ₀|, then θ by −η c z/√H with the new H."""
        slope, bend = coefficients
        z, in_float32 = self.direction(), self.config.state_dtype == "float32"
        scalars = bend, self.smooth, 2 * self.config.eps**2, in_float32
        self.apply_update(
            lambda lr: HiZOOUpdate(z, self.state["h"], HiZOOScalars(-lr * slope, *scalars))
        )

    def slope(self, coefficients: Coefficients) -> float:
        """Returns c."""
        return coefficients[0]
