"""Intervals and tests of one accuracy, of two classifiers, and of a few paired values.

They are SciPy's and statsmodels' wherever these have them. The exact Wilcoxon test with ties and the resamples of a
bootstrap are written out, as neither library has them; Holm's correction, as statsmodels' takes 0.2 s a call.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import Any

import numpy as np
from scipy import stats

LEVEL = 0.05
MIDDLE = (0.025, 0.975)  # quantiles of a 95 % interval
RESAMPLES = 10_000
DIGITS = 9  # beyond them a sum depends on its order
NAN = float("nan")


def wilson_interval(correct: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion, within [0, 1], without continuity correction."""
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(correct, n, alpha=1 - 0.95, method="wilson")
    return 0.0 if correct == 0 else float(low), 1.0 if correct == n else float(high)


def resamples(n: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Every resample of n values, as the indices that it has, and in how many orders it can be drawn."""
    for pick in combinations_with_replacement(range(n), n):
        yield pick, factorial(n) // prod(factorial(pick.count(i)) for i in set(pick))


def weighted_ends(values: Any, weights: Any) -> tuple[float, float]:
    """The ends between which the middle 95 % of weighted values lie."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(np.asarray(weights)[order])
    low, high = np.searchsorted(reached, np.array(MIDDLE) * reached[-1])
    return float(values[order][low]), float(values[order][high])


def bootstrap(values: Any) -> tuple[float, float]:
    """Percentile interval of a mean, by 10,000 resamples of its values."""
    means = resample_counts(len(values)) @ np.asarray(values, float) / len(values)
    low, high = np.quantile(means, MIDDLE)
    return float(low), float(high)


@lru_cache(maxsize=2)
def resample_counts(n: int) -> Any:
    """How often each of n values is in each resample, (RESAMPLES, n)."""
    rng = np.random.default_rng(0)
    counts = np.zeros((RESAMPLES, n))
    for row in counts:
        row += np.bincount(rng.integers(0, n, n), minlength=n)
    return counts


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval of a mean; NaN for values that are all equal, whose spread is unknown, not zero."""
    if len(values) < 2:
        raise ValueError(f"no interval for {len(values)} values")
    if np.ptp(np.round(values, DIGITS)) == 0:
        return NAN, NAN
    interval = stats.ttest_1samp(values, 0).confidence_interval()
    return float(interval.low), float(interval.high)


def paired_t(values: Sequence[float]) -> float:
    """Two-sided p-value that the mean of the values is 0; NaN if they do not vary, or are fewer than 2."""
    if len(values) < 2 or np.ptp(np.round(values, DIGITS)) == 0:
        return NAN
    return float(stats.ttest_1samp(values, 0).pvalue)


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
