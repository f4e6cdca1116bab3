"""Intervals and tests of one accuracy, of two classifiers, of a few paired values, and of methods over cells.

They are SciPy's and statsmodels' wherever these have them. Nemenyi's critical difference, the exact Wilcoxon test
with ties and the enumerated bootstrap are written out, as neither library has them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import factorial, prod, sqrt

import numpy as np
from scipy import stats

LEVEL = 0.05
EXACT_RESAMPLES = 8  # up to so many values the bootstrap is enumerated: 6,435 different resamples
DIGITS = 9  # beyond them a sum depends on its order
NAN = float("nan")


def wilson_interval(correct: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion, within [0, 1], without continuity correction."""
    from statsmodels.stats.proportion import proportion_confint

    if not (n >= 1 and 0 <= correct <= n and 0 < confidence < 1):
        raise ValueError(f"no interval for {correct} of {n} at confidence {confidence}")
    low, high = proportion_confint(correct, n, alpha=1 - confidence, method="wilson")
    return 0.0 if correct == 0 else float(low), 1.0 if correct == n else float(high)


def mcnemar_exact(first: Sequence[bool], second: Sequence[bool]) -> float:
    """Two-sided p-value of McNemar's exact test that two classifiers are right on equally many of the same examples."""
    from statsmodels.stats.contingency_tables import mcnemar

    if len(first) != len(second):
        raise ValueError(f"unpaired: {len(first)} and {len(second)} examples")
    right = Counter(zip(map(bool, first), map(bool, second), strict=True))
    table = [[right[a, b] for b in (True, False)] for a in (True, False)]
    return float(mcnemar(table, exact=True).pvalue)


def bootstrap_interval(
    values: Sequence[float], confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean; NaN for values that are all equal.

    Up to 8 values all resamples are enumerated with their probabilities; beyond that `resamples` of them are drawn. The
    interval is too narrow for few values: for five normal ones a nominal 95 % covers the mean in about 84 of 100 cases.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.
    """
    if len(values) < 2 or not 0 < confidence < 1:
        raise ValueError(f"no interval for {len(values)} values at confidence {confidence}")
    if np.ptp(values) == 0:
        return NAN, NAN
    if len(values) > EXACT_RESAMPLES:
        drawn = stats.bootstrap(
            (np.asarray(values, float),),
            np.mean,
            n_resamples=resamples,
            confidence_level=confidence,
            method="percentile",
            rng=seed,
        ).confidence_interval
        return float(drawn.low), float(drawn.high)
    n = len(values)
    picks = list(combinations_with_replacement(range(n), n))
    means = np.array([sum(values[i] for i in pick) / n for pick in picks])
    orders = [factorial(n) / prod(map(factorial, Counter(pick).values())) for pick in picks]
    order = np.argsort(means, kind="stable")
    reached = np.cumsum(np.array(orders)[order] / n**n)
    tail = (1 - confidence) / 2
    low, high = np.searchsorted(reached, [tail - 1e-12, 1 - tail - 1e-12])
    return float(means[order][low]), float(means[order][min(high, len(means) - 1)])


def student_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student's interval of a mean; NaN for values that are all equal, whose spread is unknown, not zero."""
    if len(values) < 2:
        raise ValueError(f"no interval for {len(values)} values")
    if np.ptp(np.round(values, DIGITS)) == 0:
        return NAN, NAN
    interval = stats.ttest_1samp(values, 0).confidence_interval(confidence)
    return float(interval.low), float(interval.high)


def paired_t(values: Sequence[float]) -> float:
    """Two-sided p-value that the mean of the values is 0; NaN if they do not vary, or are fewer than 2."""
    if len(values) < 2 or np.ptp(np.round(values, DIGITS)) == 0:
        return NAN
    return float(stats.ttest_1samp(values, 0).pvalue)


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p-value that wins and losses are equally likely; ties do not count."""
    return float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def wilcoxon_exact(differences: Sequence[float]) -> tuple[float, float]:
    """Wilcoxon's signed-rank test of symmetry about 0: the sum of the positive ranks, and the exact p-value.

    Zeros are left out. Ties share their mean rank; the p-value, two-sided, is counted over all signs of those ranks,
    so that it stays exact with ties, where SciPy's is not. An infinite difference, a collapse, has the highest rank.

    Source: Wilcoxon, Biometrics Bulletin 1, 1945; ties as in Hollander and Wolfe, Nonparametric Statistical Methods.
    """
    if np.isnan(differences).any():
        raise ValueError("a difference is not a number")
    kept = np.round(np.asarray(differences, float), DIGITS)
    kept = kept[kept != 0]
    if not len(kept):
        return 0.0, 1.0
    doubled = np.rint(2 * stats.rankdata(np.abs(kept))).astype(int)
    ways = [1] + [0] * int(doubled.sum())  # ways[s]: sign choices with positive ranks of sum s / 2
    for rank in doubled:
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    positive = int(doubled[kept > 0].sum())
    smaller = min(positive, int(doubled.sum()) - positive)
    return positive / 2, min(1.0, 2 * sum(ways[: smaller + 1]) / 2 ** len(kept))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given; NaN is in no family and stays NaN."""
    from statsmodels.stats.multitest import multipletests

    p = np.asarray(p_values, float)
    known = ~np.isnan(p)
    if known.any():
        p[known] = multipletests(p[known], method="holm")[1]
    return [float(value) for value in p]


@dataclass(frozen=True)
class Ranking:
    """Methods compared over the same cells."""

    cells: int  # number of cells
    average: list[float]  # each method's mean rank, 1 the best, in the order given
    p_value: float  # of Friedman's test that all methods rank alike
    # two average ranks that are further apart differ at 5 % (Nemenyi); None where Friedman's test does not reject
    # at 5 %, or for fewer than 10 cells, where its approximation is poor
    critical_difference: float | None


def ranking(scores: Sequence[Sequence[float]]) -> Ranking:
    """Average ranks, Friedman's test and Nemenyi's critical difference of scores (cells, methods); -inf for a collapse.

    Source: Demsar, "Statistical comparisons of classifiers over multiple data sets", JMLR 7, 2006.
    """
    array = np.asarray(scores, float)
    if array.ndim != 2 or array.shape[0] < 2 or array.shape[1] < 3 or np.isnan(array).any():
        raise ValueError(
            "wanted are scores of at least 3 methods on at least 2 cells, without gaps"
        )
    n, k = array.shape
    ranks = stats.rankdata(-array, axis=1)
    alike = (ranks == ranks[:, :1]).all()
    p_value = 1.0 if alike else float(stats.friedmanchisquare(*ranks.T).pvalue)
    quantile = float(stats.studentized_range.ppf(1 - LEVEL, k, np.inf)) / sqrt(2)
    valid = p_value < LEVEL and n >= 10
    difference = quantile * sqrt(k * (k + 1) / (6 * n)) if valid else None
    return Ranking(n, [float(rank) for rank in ranks.mean(axis=0)], p_value, difference)
