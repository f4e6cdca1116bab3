"""Settings of the references: methods by backpropagation, and baselines that make no step. Imports no torch."""

from dataclasses import dataclass
from typing import ClassVar

from zo.optim.config import MethodConfig


@dataclass
class BackpropConfig(MethodConfig):
    """What the settings of methods by backpropagation have."""

    replays: ClassVar[bool] = False

    @property
    def forwards_per_step(self) -> int:
        """Always 1; the backward pass is not counted."""
        return 1


@dataclass
class AdamConfig(BackpropConfig):
    """Settings of Adam.

    Attributes:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        adam_eps: δ > 0, added to √v̂.
        weight_decay: λ ≥ 0.
    """

    name: str = "adam"
    beta1: float = 0.9
    beta2: float = 0.999
    adam_eps: float = 1e-8
    weight_decay: float = 0.0


@dataclass
class SGDConfig(BackpropConfig):
    """Settings of SGD.

    Attributes:
        momentum: μ in [0, 1).
        weight_decay: λ ≥ 0.
    """

    name: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass
class ZeroShotConfig(MethodConfig):
    """Nothing to set."""

    name: str = "zero_shot"

    trains: ClassVar[bool] = False


@dataclass
class ICLConfig(MethodConfig):
    """Settings of in-context learning.

    Attributes:
        k: Demonstrations in front of every text, ≥ 1, drawn from the training examples by the run's seed.
        separator: Text between them.
    """

    name: str = "icl"
    k: int = 32
    separator: str = "\n\n"

    trains: ClassVar[bool] = False
    reads_train: ClassVar[bool] = True


@dataclass
class LinearProbeConfig(MethodConfig):
    """Settings of linear probing.

    Attributes:
        c: C > 0 of scikit-learn's LogisticRegression, the inverse strength of its L2 penalty.
    """

    name: str = "linear_probe"
    c: float = 1.0

    trains: ClassVar[bool] = False
    reads_train: ClassVar[bool] = True
