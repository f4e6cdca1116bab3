"""SGD by backpropagation: the first-order counterpart of MeZO, whose expected step it takes.

    b ← μ b + ∇L(θ) + λ θ          λ: `weight_decay`, not on biases and norms
    θ ← θ − η b                    μ = 0: θ ← θ − η ∇L(θ)

Cost: 1 forward pass per step and a backward pass, which is not counted in `train/forwards` and costs about two more;
memory: the gradient, once θ (with momentum b, once more), and the activations of the forward pass. One pass over the
weights.

Source: Robbins and Monro 1951; Polyak 1964 for the momentum. `torch.optim.SGD`.

Deviations: dropout is off, as in every zeroth-order method here, so that both minimise the same loss.
"""

from typing import Any

import torch

from zo.optim.backprop import Backprop
from zo.optim.config import SGDConfig


class SGD(Backprop):
    """torch.optim.SGD in the suite's loop."""

    def make(self, groups: list[dict[str, Any]], config: SGDConfig, lr: float) -> torch.optim.SGD:
        """Returns torch's SGD."""
        return torch.optim.SGD(groups, lr=lr, momentum=config.momentum)
