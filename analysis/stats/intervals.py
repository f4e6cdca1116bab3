"""Intervals and tests of one accuracy, of two classifiers, and of a few values, by SciPy and statsmodels.

Holm's correction is written out: statsmodels' takes 0.2 s a call.
"""

from collections.abc import Sequence

import numpy as np
from scipy import stats

LEVEL = 0.05
DIGITS = 9  # beyond them a sum depends on its order


def wilson_interval(correct: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion, within [0, 1], without continuity correction."""
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(correct, n, alpha=1 - 0.95, method="wilson")
    return 0.0 if correct == 0 else float(low), 1.0 if correct == n else float(high)


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p-value that wins and losses are equally likely; ties do not count.

    Of test examples that one of two classifiers alone gets right it is McNemar's exact test.
    """
    return float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given; NaN is in no family and stays NaN."""
    p = np.array(p_values, float)
    order = np.argsort(p)[: np.count_nonzero(~np.isnan(p))]  # NaN last
    steps = p[order] * np.arange(len(order), 0, -1)
    p[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(value) for value in p]
