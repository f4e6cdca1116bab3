"""Adam by backpropagation: what a zeroth-order method gives up, or saves.

    g = ∇L(θ)
    m ← β₁ m + (1 − β₁) g;   v ← β₂ v + (1 − β₂) g²
    θ ← θ − η (m̂ / (√v̂ + δ) + λ θ)          λ: `weight_decay`, not on biases and norms

Cost: 1 forward pass per step and a backward pass, which is not counted in `train/forwards` and costs about two more;
memory: gradient, m and v, three times θ, and the activations of the forward pass. One pass over the weights.

Source: Kingma and Ba 2015, Algorithm 1; Loshchilov and Hutter 2019 for the decoupled decay. `torch.optim.AdamW`.

Deviations: dropout is off, as in every zeroth-order method here, so that both minimise the same loss; the moments are
in the parameters' dtype and no loss is scaled: in float16 they underflow, δ = 1e-8 is 0, and the run collapses at its
first step unless `adam_eps` is a number that float16 has (≥ 6e-8).
"""

from typing import Any

import torch

from zo.optim.backprop import Backprop
from zo.optim.config import AdamConfig


class Adam(Backprop):
    """torch.optim.AdamW in the suite's loop."""

    def make(
        self, groups: list[dict[str, Any]], config: AdamConfig, lr: float
    ) -> torch.optim.AdamW:
        """Returns torch's AdamW, which is Adam when nothing decays."""
        betas = (config.beta1, config.beta2)
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=config.adam_eps)
