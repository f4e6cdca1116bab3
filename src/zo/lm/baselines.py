"""Baselines: options of `optimizer` whose runs make no step and evaluate the pretrained model. Imports no torch."""

from dataclasses import dataclass
from typing import ClassVar

from zo.optim.config import Count, MethodConfig, Positive


@dataclass
class BaselineConfig(MethodConfig):
    """What the settings of every baseline have."""

    evaluates_by: ClassVar[str] = ""
    """Class of `zo.lm.scoring.baselines` that reads training examples; empty is the task's scorer."""


@dataclass
class ZeroShotConfig(BaselineConfig):
    """Nothing to set."""

    name: str = "zero_shot"


@dataclass
class ICLConfig(BaselineConfig):
    """Settings of in-context learning.

    Attributes:
        k: Demonstrations in front of every text, ≥ 1, drawn from the training examples by the run's seed.
        separator: Text between them.
    """

    name: str = "icl"
    k: Count = 32
    separator: str = "\n\n"

    evaluates_by: ClassVar[str] = "InContext"


@dataclass
class LinearProbeConfig(BaselineConfig):
    """Settings of linear probing.

    Attributes:
        c: C > 0 of scikit-learn's LogisticRegression, the inverse strength of its L2 penalty.
    """

    name: str = "linear_probe"
    c: Positive = 1.0

    evaluates_by: ClassVar[str] = "LinearProbe"


BASELINES: dict[str, type[BaselineConfig]] = {
    of.name: of for of in (ZeroShotConfig, ICLConfig, LinearProbeConfig)
}


def reads_train(config: object) -> bool:
    """Returns whether an option of `optimizer` is a baseline that reads training examples."""
    return isinstance(config, BaselineConfig) and bool(config.evaluates_by)
