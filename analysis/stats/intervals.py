"""Intervals and tests by SciPy: of one accuracy, of two classifiers, and corrected p-values."""

from collections.abc import Sequence

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

LEVEL = 0.05
DIGITS = 9  # beyond them a sum depends on its order


def wilson_interval(correct: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion, within [0, 1], without continuity correction."""
    z = special.ndtri(1 - LEVEL / 2)
    middle, scale = correct + z**2 / 2, n + z**2
    half = z * np.sqrt(correct * (n - correct) / n + z**2 / 4)
    low, high = (middle - half) / scale, (middle + half) / scale
    return 0.0 if correct == 0 else float(low), 1.0 if correct == n else float(high)


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p-value that wins and losses are equally likely; ties do not count.

    Of test examples that one of two classifiers alone gets right it is McNemar's exact test.
    """
    return min(1.0, 2 * float(special.bdtr(min(wins, losses), wins + losses, 0.5)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given; NaN is in no family and stays NaN."""
    p = np.array(p_values, float)
    order = np.argsort(p)[: np.count_nonzero(~np.isnan(p))]  # NaN last
    steps = p[order] * np.arange(len(order), 0, -1)
    p[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(value) for value in p]
