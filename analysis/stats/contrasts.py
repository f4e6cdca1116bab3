"""What a few seeds and a fixed set of test examples can say about a contrast between runs.

A contrast is a weighted sum over settings, as BSZO − MeZO, or a slope over k. Every seed gives one value of it, because
runs of one seed see the same mini-batches. Two things are left to chance:

- the seeds: Student's interval of their values;
- the test examples: the percentile interval of 10,000 resamples of the examples, the same resample for every
  run of the contrast, the runs held fixed.

The interval that decides combines the two, each side by itself, as the root of the sum of their squared half-widths: it
is never narrower than either. (The spread between seeds holds some of the chance of the examples already, so that it
errs towards being wide.) Losses are logged as means over the validation examples; for them it is Student's alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import numpy as np

from analysis.stats.intervals import student_interval

RESAMPLES, RESAMPLING_SEED, CONFIDENCE = 10_000, 0, 0.95
DIGITS = 9  # beyond them a sum depends on its order
HOLDS, CONTRADICTED, OPEN, NONE = "holds", "contradicted", "open", "–"
NAN = float("nan")


@dataclass(frozen=True)
class Estimate:
    """A contrast with its 95 % intervals; NaN for what cannot be said.

    Attributes:
        estimate: mean over the seeds.
        low, high: the interval that decides, see the module.
        seeds_low, seeds_high: Student's over the seeds.
        examples_low, examples_high: of the bootstrap over test examples.
        p_value: two-sided, of Student's paired t test over the seeds alone.
        n: seeds.
        examples: test examples; 0 for what is not measured per example.
    """

    estimate: float = NAN
    low: float = NAN
    high: float = NAN
    seeds_low: float = NAN
    seeds_high: float = NAN
    examples_low: float = NAN
    examples_high: float = NAN
    p_value: float = NAN
    n: int = 0
    examples: int = 0

    @property
    def verdict(self) -> str:
        """`holds` if the interval lies above 0, `contradicted` if below, `open` if it has 0; `–` without one."""
        if np.isnan(self.low):
            return NONE
        if self.low > 0:
            return HOLDS
        return CONTRADICTED if self.high < 0 else OPEN


def of_values(values: Sequence[float]) -> Estimate:
    """One value per seed and nothing else; with one seed there is no interval."""
    kept = [round(float(value), DIGITS) for value in values]
    if not kept:
        return Estimate()
    if len(kept) == 1:
        return Estimate(kept[0], n=1)
    low, high = student_interval(kept)
    return Estimate(fmean(kept), low, high, low, high, p_value=paired_t(kept), n=len(kept))


def of_examples(values: Any) -> Estimate:
    """One value per seed and test example, (seeds, examples); see the module.

    With one seed only the interval over examples is given, and none that decides.
    """
    seeds, examples = values.shape
    alone = of_values(values.mean(axis=1))
    low, high = bootstrap(values.mean(axis=0))
    below = above = NAN
    if seeds > 1:
        half = alone.seeds_high - alone.estimate
        below = alone.estimate - sqrt(half**2 + (alone.estimate - low) ** 2)
        above = alone.estimate + sqrt(half**2 + (high - alone.estimate) ** 2)
    return replace(
        alone,
        low=round(below, DIGITS),
        high=round(above, DIGITS),
        examples_low=round(low, DIGITS),
        examples_high=round(high, DIGITS),
        examples=examples,
    )


def paired_t(values: Sequence[float]) -> float:
    """Two-sided p-value that the mean of the values is 0; NaN if they do not vary, or are fewer than 2."""
    from scipy.stats import t

    if len(values) < 2 or stdev(values) == 0:
        return NAN
    statistic = fmean(values) / (stdev(values) / sqrt(len(values)))
    return float(2 * t.sf(abs(statistic), len(values) - 1))


def bootstrap(values: Any) -> tuple[float, float]:
    """Percentile interval of the mean over test examples."""
    means = _counts(len(values)) @ np.asarray(values, float) / len(values)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


@lru_cache(maxsize=2)
def _counts(examples: int) -> Any:
    """How often each example is in each resample, (RESAMPLES, examples)."""
    rng = np.random.default_rng(RESAMPLING_SEED)
    counts = np.zeros((RESAMPLES, examples))
    for row in counts:
        row += np.bincount(rng.integers(0, examples, examples), minlength=examples)
    return counts


def contrast(terms: Sequence[tuple[float, Mapping[int, Any]]]) -> Any:
    """A weighted sum over settings for every seed that all of them have.

    Args:
        terms: weight and, by seed, a number or one number per test example.

    Returns:
        (seeds,) or (seeds, examples), in the order of the seeds.
    """
    seeds = sorted(set.intersection(*(set(values) for _, values in terms)))
    return np.array([sum(weight * values[seed] for weight, values in terms) for seed in seeds])
