"""Settings of the references, methods by backpropagation. Imports no torch."""

from dataclasses import dataclass
from typing import ClassVar

from zo.optim.config import AtLeast0, Decay, MethodConfig, Positive


@dataclass(kw_only=True)
class BackpropConfig(MethodConfig):
    """Base class of the settings of first-order methods."""

    replays: ClassVar[bool] = False

    @property
    def forwards_per_step(self) -> int:
        """Always 1; the backward pass is not counted."""
        return 1


@dataclass(kw_only=True)
class AdamConfig(BackpropConfig):
    """Settings of Adam.

    Attributes:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        adam_eps: δ > 0, added to √v̂.
        weight_decay: λ ≥ 0.
    """

    name: str = "adam"
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    adam_eps: Positive = 1e-8
    weight_decay: AtLeast0 = 0.0


@dataclass(kw_only=True)
class SGDConfig(BackpropConfig):
    """Settings of SGD.

    Attributes:
        momentum: μ in [0, 1).
        weight_decay: λ ≥ 0.
    """

    name: str = "sgd"
    momentum: Decay = 0.0
    weight_decay: AtLeast0 = 0.0
