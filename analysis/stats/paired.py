"""Paired differences over seeds of many lines at once, and how small a difference so many seeds can find."""

from functools import lru_cache
from math import sqrt

import numpy as np
import pandas as pd
from scipy import special

from analysis.stats.intervals import DIGITS, LEVEL

POWER = 0.8


def paired_estimates(values: pd.Series, by: list[pd.Series]) -> pd.DataFrame:
    """A row per group: `estimate`, `low`, `high` (Student, 95 %), `p_value` (two-sided, of a mean of 0), `n`, `spread`.

    One value, or equal values, give no interval and no p-value.
    """
    groups = values.round(DIGITS).groupby(by, sort=False)
    frame = pd.DataFrame({"estimate": groups.mean(), "n": groups.count(), "spread": groups.std()})
    varies = frame["spread"].where(frame["spread"] > 10.0**-DIGITS)
    error, free = varies / np.sqrt(frame["n"]), frame["n"] - 1
    half = special.stdtrit(free, 1 - LEVEL / 2) * error
    frame["low"], frame["high"] = frame["estimate"] - half, frame["estimate"] + half
    frame["p_value"] = 2 * special.stdtr(free, -np.abs(frame["estimate"] / error))
    return frame


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
