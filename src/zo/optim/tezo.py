"""TeZO: low-rank directions whose factors stay, so that a step draws, and moments keep, r numbers per matrix.

    once, for every parameter of m × n:  U ~ N(0, I), m × r;  V ~ N(0, I), n × r
    τ ~ N(0, I_r);  D = U diag(τ) Vᵀ / √r        (biases and norms: D = τ ~ N(0, I))
    c = (L(θ + ε D) − L(θ − ε D)) / 2ε
    `variant`  sgd:       θ ← θ − η c D
               momentum:  a ← β₁ a + (1 − β₁) c τ;   θ ← θ − η U diag(a) Vᵀ / √r
               adam:      a as there;  b ← β₂ b + (1 − β₂) c² τ²;  â, b̂ corrected for their start at 0 as in Adam
                          θ ← θ − η (U diag(â) Vᵀ) / (√((U∘U) diag(b̂) (V∘V)ᵀ) + δ), both products with their 1/√r
    each with − η λ θ        λ: `weight_decay`, not on biases and norms

Cost: 2 forward passes per step; state: none (sgd), r numbers per matrix and a copy of biases and norms (momentum), or
twice that (adam), float32. Passes over the weights: 4 (`restore=subtract`), each a product of two thin matrices; U and
V are drawn again from their keys, r (m + n) normals. Under `restore=factors` as LOZO, but not with Adam.

Source: Sun et al. 2025, "TeZO: Empowering the Low-Rankness on the Temporal Dimension in the Zeroth-Order Optimization
for Fine-tuning LLMs"; by a secondary rendering of its formulas.

Deviations: could not be verified: the paper's choice of r by layer (here one r), β₁, β₂, δ, whether its moments are
corrected, and the form of TeZO-Adam's denominator, which here leaves out the products of different columns. The factor
1/√r makes the entries' variance 1, so that ε and η mean what they mean in MeZO. `n` > 1 (sgd) is ours.
"""

import torch
from torch import Tensor

from zo.optim.base import Coefficients
from zo.optim.config_low_rank import TeZOConfig
from zo.optim.lozo import LOZO
from zo.weights.directions import Stored, Terms
from zo.weights.space import ParameterSpace
from zo.weights.subspaces import Temporal, kept_left
from zo.weights.updates import LinearUpdate, TensorwiseUpdate


class TeZO(LOZO):
    """θ ← θ − η U diag(c τ, its momentum or its Adam step) Vᵀ / √r."""

    config: TeZOConfig

    def __init__(self, params: ParameterSpace, config: TeZOConfig, *, lr: float, seed: int):
        super().__init__(params, config, lr=lr, seed=seed)
        for name in {"sgd": (), "momentum": ("a",), "adam": ("a", "b")}[config.variant]:
            self.state[f"tau_{name}"] = [
                p.new_zeros(self.config.rank if p.dim() > 1 else p.shape, dtype=torch.float32)
                for p in params.like
            ]

    @property
    def update_scale(self) -> float:
        """1/√r."""
        return float(self.config.rank**-0.5)

    def direction_at(self, step: int, i: int = 0) -> Temporal:
        """Returns direction `i` of a step: τ new, U and V the same as ever."""
        u, v = self.kept_key(step, 0), self.kept_key(step, 1)
        return self.drawn(Temporal, step, i, v, scale=self.update_scale, kept=u)

    def apply(self, coefficients: Coefficients) -> None:
        """Moves the moments of c τ, and θ by what the variant makes of them."""
        if self.config.variant == "sgd":
            super().apply(coefficients)
            return
        (c,), z = coefficients, self.direction_at(self.step_index)
        beta1, beta2 = self.config.beta1, self.config.beta2
        a, tensors = self.state["tau_a"], self.params.like
        tau = [z.coefficients(i, p) for i, p in enumerate(tensors)]
        for a_p, tau_p in zip(a, tau, strict=True):
            a_p.mul_(beta1).add_(tau_p, alpha=(1 - beta1) * c)
        if self.config.variant == "momentum":
            left = [
                z.factor(i, p) * a[i][:, None] if p.dim() > 1 else a[i]
                for i, p in enumerate(tensors)
            ]
            self.apply_update(lambda lr: LinearUpdate([(-lr, kept_left(z, left))]))
            return
        b, t = self.state["tau_b"], self.step_index + 1
        for b_p, tau_p in zip(b, tau, strict=True):
            b_p.mul_(beta2).add_(tau_p * tau_p, alpha=(1 - beta2) * c * c)
        a_hat, b_hat = [x / (1 - beta1**t) for x in a], [x / (1 - beta2**t) for x in b]

        def terms(lr: float, i: int, p: Tensor) -> Terms:
            m, square = a_hat[i], b_hat[i]
            if p.dim() > 1:
                u, v = z.factor(i, p), z.right(i, p)  # (r, m), (r, n)
                m = z.product(u * m[:, None], v).mul_(z.scale).view(p.shape)
                square = z.product(u**2 * square[:, None], v**2).mul_(z.scale**2).view(p.shape)
            return [(-lr, Stored({i: m / (square.sqrt() + self.config.adam_eps)}))]

        self.apply_update(lambda lr: TensorwiseUpdate(terms, lr))
