"""ConMeZO: probes in a cone around a momentum.

    u ~ N(0, I);  z = √d cos ϑ m/‖m‖ + sin ϑ u            d: number of trainable values; m ~ N(0, I) at the start
    c = (L(θ + ε z) − L(θ − ε z)) / 2ε
    θ ← θ − η (c z + λ θ)                                 λ: `weight_decay`, not on biases and norms
    m ← β m + (1 − β) c z
    β = β₀ for t ≤ t₀;  β* − (β* − β₀) / (1 + 8p)³ with p = ((t − t₀) / t₁)^1.8 for t ≤ t₀ + t₁;  then β*

Cost: 2 forward passes per step; state: m, 4 bytes per parameter, or once θ in its dtype. Passes over the weights: those
of MeZO, each reading m too; the last writes m.

Source: "ConMeZO", arXiv 2511.02757, in the order and with the settings of its released code for OPT.

Deviations: those of MeZO. ‖m‖ is measured after each update; the released code takes √(d (α² + β²)), its expectation.
m is float32 (`state_dtype: param` as the released code, where it overflows in fp16 at large slopes). The learning rate
follows schedules, which the released code ignores.
"""

import math
from typing import Any

import torch

from zo.noise import SUBSPACE, NoiseKey
from zo.optim.base import Coefficients, state_dtype
from zo.optim.config_spsa import ConMeZOConfig
from zo.optim.mezo import MeZO
from zo.weights.directions import Gaussian, Stored, Terms
from zo.weights.space import ParameterSpace
from zo.weights.updates import ElementwiseUpdate


class ConMeZO(MeZO):
    """θ ← θ − η c z, with z in a cone around m."""

    config: ConMeZOConfig

    def __init__(self, params: ParameterSpace, config: ConMeZOConfig, *, lr: float, seed: int):
        super().__init__(params, config, lr=lr, seed=seed)
        self.state["m"] = params.full(0.0, state_dtype(config.state_dtype))
        start = Gaussian(NoiseKey(seed, SUBSPACE, 0, 0), params.engine)
        for i, (m, p) in enumerate(zip(self.state["m"], params.like, strict=True)):
            m.copy_(start.sample(i, p))
        self.numbers["norm"] = self._norm()

    @property
    def beta(self) -> float:
        """The current step's β."""
        last, t = self.config.beta, self.step_index - self.config.hold
        first = min(self.config.beta_start, last)
        if t <= 0 or t > self.config.ramp:
            return first if t <= 0 else last
        p = math.pow(t / self.config.ramp, 1.8)
        return last - (last - first) / (1 + 8 * p) ** 3

    def along(self, i: int) -> Terms:
        """Returns z: cos ϑ of its length along m, sin ϑ along u; u alone where m is 0."""
        norm, angle = self.numbers["norm"], self.config.angle
        weight = math.sqrt(self.params.numel) * math.cos(angle) / norm if norm else 0.0
        return [(weight, Stored(self.state["m"])), (math.sin(angle), self.direction(i))]

    def apply(self, coefficients: Coefficients) -> None:
        """Moves θ by −η c z and m by (1 − β) c z."""
        (c,), along, beta, m = coefficients, self.along(0), self.beta, self.state["m"]

        def moved(at: Any) -> Any:
            z = at.sum(along)
            at.store(m, at.load(m).mul(beta).add(z, alpha=(1 - beta) * c))
            return z

        self.apply_update(lambda lr: ElementwiseUpdate(moved, -lr * c))
        self.numbers["norm"] = self._norm()

    def _norm(self) -> float:
        """Returns ‖m‖, summed in float64; one wait for the device."""
        self.params.policy.apply_deferred()  # m moves with offloaded weights
        norms = torch._foreach_norm(self.state["m"], dtype=torch.float64)
        on_one = torch.stack([norm.to(norms[0].device) for norm in norms])
        return math.sqrt(sum(norm**2 for norm in on_one.tolist()))
