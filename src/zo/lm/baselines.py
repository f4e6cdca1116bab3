"""Settings of baselines: options of `optimizer` that evaluate the pretrained model without a step. No torch."""

from dataclasses import dataclass

from zo.optim.config import Count, MethodConfig, Positive


@dataclass
class ZeroShotConfig(MethodConfig):
    """Settings of zero-shot evaluation: none."""

    name: str = "zero_shot"


@dataclass
class ICLConfig(MethodConfig):
    """Settings of in-context learning, Brown et al. 2020.

    Attributes:
        k: Demonstrations before every text, ≥ 1, chosen from the training examples by the run's seed; MeZO's code: 32.
        separator: Text between them.
    """

    name: str = "icl"
    k: Count = 32
    separator: str = "\n\n"


@dataclass
class LinearProbeConfig(MethodConfig):
    """Settings of linear probing.

    Attributes:
        c: C > 0 of scikit-learn's LogisticRegression, the inverse strength of its L2 penalty; scikit-learn's default.
    """

    name: str = "linear_probe"
    c: Positive = 1.0


KINDS: tuple[type[MethodConfig], ...] = (ZeroShotConfig, ICLConfig, LinearProbeConfig)
BASELINES = {kind.name: kind for kind in KINDS}

EVALUATORS = {
    "icl": "zo.lm.scoring.baselines:InContext",
    "linear_probe": "zo.lm.scoring.baselines:LinearProbe",
}
"""Baseline that reads training examples -> its class; that of the others is the task's scorer."""


def reads_train(config: MethodConfig) -> bool:
    """Returns whether an option of `optimizer` is a baseline that reads training examples."""
    return config.name in EVALUATORS
