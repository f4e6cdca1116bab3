"""SGD by backpropagation: the first-order counterpart of MeZO, whose expected step it takes.

    b ← μ b + ∇L(θ) + λ θ          λ: `weight_decay`, not on biases and norms
    θ ← θ − η b                    μ = 0: θ ← θ − η ∇L(θ)

Cost: 1 forward pass per step and a backward pass, which is not counted in `train/forwards` and costs about two more;
memory: the gradient, once θ (with momentum b, once more), and the activations of the forward pass. One pass over the
weights.

Source: Robbins and Monro 1951; Polyak 1964 for the momentum. `torch.optim.SGD`.

Deviations: dropout is off, as in every zeroth-order method here, so that both minimise the same loss.
"""

from dataclasses import dataclass
from typing import Any

import torch

from zo.optim.backprop import Backprop


@dataclass
class SGDConfig:
    """Settings of SGD.

    Attributes:
        momentum: μ in [0, 1).
        weight_decay: λ ≥ 0.
    """

    name: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, what would be right) of every value out of range."""
        checks = [
            ("momentum", 0 <= self.momentum < 1, "must be in [0, 1)"),
            ("weight_decay", self.weight_decay >= 0, "must be at least 0"),
        ]
        return [(key, right) for key, ok, right in checks if not ok]


class SGD(Backprop):
    """torch.optim.SGD in the suite's loop."""

    def make(self, groups: list[dict[str, Any]], config: SGDConfig, lr: float) -> torch.optim.SGD:
        """Returns torch's SGD."""
        return torch.optim.SGD(groups, lr=lr, momentum=config.momentum)
