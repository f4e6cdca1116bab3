"""Settings of baselines: options of `optimizer` that evaluate the pretrained model without a step. No torch."""

from dataclasses import dataclass
from typing import ClassVar

from zo.optim.config import Count, MethodConfig, Positive


@dataclass
class BaselineConfig(MethodConfig):
    """Base class of the settings of baselines."""

    evaluates_by: ClassVar[str] = ""
    """Class of `zo.lm.scoring.baselines` that reads training examples; empty: the task's scorer."""


@dataclass
class ZeroShotConfig(BaselineConfig):
    """Settings of zero-shot evaluation: none."""

    name: str = "zero_shot"


@dataclass
class ICLConfig(BaselineConfig):
    """Settings of in-context learning, Brown et al. 2020.

    Attributes:
        k: Demonstrations before every text, ≥ 1, chosen from the training examples by the run's seed; MeZO's code: 32.
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
        c: C > 0 of scikit-learn's LogisticRegression, the inverse strength of its L2 penalty; scikit-learn's default.
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
