"""MeZO-Adam: Adam on MeZO's estimate of the gradient.

    c = (L(θ + ε z) − L(θ − ε z)) / 2ε,  g = c z          (n > 1: the mean of n of them)
    m ← β₁ m + (1 − β₁) g;   v ← β₂ v + (1 − β₂) g²;   t ← t + 1
    m̂ = m / (1 − β₁ᵗ);   v̂ = v / (1 − β₂ᵗ)
    θ ← θ − η (m̂ / (√v̂ + δ) + λ θ)        δ: `adam_eps`; λ: `weight_decay`, not on biases and norms

Cost: 2n forward passes per step (one-sided 1 + n); state: m and v, twice the memory of θ in its dtype, or 8 bytes per
parameter in float32. Passes over the weights: 2n + 2 (`restore=subtract`) or 2n + 1 (`merged`), the last of
them over the moments, too; under Philox noise each reads and writes once what it moves.

Source: Malladi et al. 2023, "Fine-Tuning Language Models with Just Forward Passes", Appendix B; Kingma and Ba 2015,
Algorithm 1; the BSZO paper's MeZO-Adam.

Deviations: those of MeZO. As in the released code, `state_dtype: param` keeps the moments and computes the step in the
parameters' dtype. In float16 that overflows: v falls below the smallest number, δ is 0, and the step is 0/0 or worse;
the run then ends as collapsed. `state_dtype: float32` does all of it in float32. Weight decay is decoupled and 0 by
default (the released code passes none).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from zo.noise.program import Value
from zo.optim.base import Coefficients, state_dtype
from zo.optim.config_spsa import MeZOAdamConfig
from zo.optim.mezo import MeZO
from zo.weights.directions import Stored, Terms
from zo.weights.programs import ProgramValues
from zo.weights.space import ParameterSpace
from zo.weights.updates import ParameterUpdate, combined


class AdamScalars(NamedTuple):
    """Scalars of a step of Adam.

    Attributes:
        beta1: β₁.
        beta2: β₂.
        root1: 1 − β₁ᵗ.
        root2: √(1 − β₂ᵗ).
        eps: δ.
        step: Coefficient of m̂ / (√v̂ + δ).
    """

    beta1: float
    beta2: float
    root1: float
    root2: float
    eps: float
    step: float


@dataclass(frozen=True, eq=False)
class AdamUpdate(ParameterUpdate):
    """The moments move by a gradient, then θ by a multiple of m̂ / (√v̂ + δ).

    Attributes:
        gradient: Σ c_j z_j, at least one term.
        m: First moments, one tensor per trainable one.
        v: Second moments.
        scalars: Of the step.
    """

    gradient: Terms
    m: Sequence[Tensor]
    v: Sequence[Tensor]
    scalars: AdamScalars

    def terms(self, i: int, p: Tensor) -> Terms:
        """Moves the moments for tensor `i` and returns what θ moves by: not finite where their dtype is too narrow."""
        m, v, of = self.m[i], self.v[i], self.scalars
        g = combined(self.gradient, i, p).to(m.dtype)
        m.mul_(of.beta1).add_(g, alpha=1 - of.beta1)
        v.mul_(of.beta2).addcmul_(g, g, value=1 - of.beta2)
        denominator = v.sqrt().div_(of.root2).add_(of.eps)
        return [(of.step, Stored({i: (m / of.root1).div_(denominator).float()}))]

    def change(self, at: ProgramValues, x: Value) -> Value:
        """As `ParameterUpdate.change`: moves the moments; what is computed of them is rounded to their dtype."""
        of, full, dtype = self.scalars, at.program.full, at.array(self.m)
        (c, z), *others = self.gradient
        g = at.sample(z).mul(c)
        for c, z in others:
            g = g.plus(at.sample(z), c)
        g = g.rounded(dtype)
        m, v = at.load(self.m).mul(of.beta1), at.load(self.v).mul(of.beta2)
        m = m.rounded(dtype).add(full(1 - of.beta1).rounded(dtype).mul(g)).rounded(dtype)
        v = v.rounded(dtype).add(g.mul(1 - of.beta2).mul(g)).rounded(dtype)
        at.store(self.m, m)
        at.store(self.v, v)
        root = v.sqrt().rounded(dtype).div(of.root2).rounded(dtype)
        way = m.div(of.root1).rounded(dtype).div(root.add(of.eps).rounded(dtype)).rounded(dtype)
        return x.plus(way, of.step)

    @property
    def along(self) -> Terms:
        """As `ParameterUpdate.along`."""
        return self.gradient


class MeZOAdam(MeZO):
    """θ ← θ − η m̂ / (√v̂ + δ), with the moments of c z."""

    config: MeZOAdamConfig

    def __init__(self, params: ParameterSpace, config: MeZOAdamConfig, *, lr: float, seed: int):
        super().__init__(params, config, lr=lr, seed=seed)
        dtype = state_dtype(config.state_dtype)
        self.state |= {"m": params.full(0.0, dtype), "v": params.full(0.0, dtype)}

    def apply(self, coefficients: Coefficients) -> None:
        """Moves the moments by g = 1/n Σ c_i z_i, and θ by −η m̂ / (√v̂ + δ)."""
        gradient = [(c / self.config.n, self.direction(i)) for i, c in enumerate(coefficients)]
        m, v, t = self.state["m"], self.state["v"], self.step_index + 1
        beta1, beta2 = self.config.beta1, self.config.beta2
        roots = 1 - beta1**t, math.sqrt(1 - beta2**t)
        scalars = beta1, beta2, *roots, self.config.adam_eps
        self.apply_update(lambda lr: AdamUpdate(gradient, m, v, AdamScalars(*scalars, -lr)))
