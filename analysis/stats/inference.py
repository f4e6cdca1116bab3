"""Intervals and tests by SciPy, of accuracies and of paired differences over seeds, and corrected p-values."""

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
from scipy import special  # scipy.stats takes half a second to import

LEVEL, POWER = 0.05, 0.8
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


def paired_estimates(values: pd.Series, by: list[pd.Series]) -> pd.DataFrame:
    """A row per group: `estimate`, `low`, `high` (Student, 95 %), `p_value` (two-sided, of a mean of 0), `n`, `spread`.

    One value, or equal values, give no interval and no p-value.
    """
    groups = values.round(DIGITS).groupby(by, sort=False)
    frame = pd.DataFrame({"estimate": groups.mean(), "n": groups.count(), "spread": groups.std()})
    half = half_width(frame, LEVEL)
    frame["low"], frame["high"] = frame["estimate"] - half, frame["estimate"] + half
    standardised = np.abs(frame["estimate"] / _error(frame))
    frame["p_value"] = 2 * special.stdtr(frame["n"] - 1, -standardised)
    return frame


def half_width(estimates: pd.DataFrame, level: Any) -> pd.Series:
    """Half the widths of Student's intervals of `paired_estimates` at 1 - level."""
    width: pd.Series = special.stdtrit(estimates["n"] - 1, 1 - level / 2) * _error(estimates)
    return width


def _error(estimates: pd.DataFrame) -> pd.Series:
    """Standard errors; NaN without spread."""
    varies = estimates["spread"].where(estimates["spread"] > 10.0**-DIGITS)
    return varies / np.sqrt(estimates["n"])


@lru_cache
def minimum_detectable_effect(n: int, tests: int) -> float:
    """The difference, in standard deviations of n paired values, that is found with a probability of 80 %.

    Found: significant at the level of Holm's first of so many tests.
    """
    if n < 2:
        return float("nan")
    from scipy import optimize, stats  # here: slow to import

    least = stats.t.ppf(1 - LEVEL / max(tests, 1) / 2, n - 1)

    def missed(effect: float) -> float:
        return float(stats.nct.cdf(least, n - 1, effect * sqrt(n))) - (1 - POWER)

    # Far beyond the answer scipy's noncentral t is NaN for some n.
    return float(optimize.brentq(missed, 0.0, (2 * least + 10) / sqrt(n)))
