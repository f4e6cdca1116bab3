"""What a few seeds and a fixed set of test examples can say about a contrast between runs.

A contrast is a weighted sum over settings, as BSZO − MeZO, or a slope over k. Every seed gives one value of it, because
runs of one seed see the same mini-batches. Three things are left to chance:

- the seeds: Student's interval of their values;
- the test examples: the percentile interval of 10,000 resamples of the examples, the same resample for every run of the
  contrast, the runs held fixed;
- the choice of the learning rate: seeds and examples are resampled together, and every setting chooses its learning
  rate anew from the resampled seeds (`choice_interval`).

Seeds and examples are combined, each side by itself, as the root of the sum of their squared half-widths (MOVER: Zou
and Donner, "Construction of confidence limits about effect measures", Statistics in Medicine 27, 2008). The interval
that decides also covers that of the choice. Losses are logged as means over the validation examples; for them it is
Student's alone.

A verdict needs both: the interval excludes 0, and Holm's corrected p-value is below 5 % (`verdicts`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations_with_replacement
from math import factorial, prod, sqrt
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats.intervals import DIGITS, LEVEL, NAN, holm, paired_t, student_interval

RESAMPLES, RESAMPLING_SEED, CONFIDENCE = 10_000, 0, 0.95
HOLDS, CONTRADICTED, OPEN, NONE = "holds", "contradicted", "open", "–"


@dataclass(frozen=True)
class Estimate:
    """A contrast with its 95 % intervals; NaN for what cannot be said.

    `low` and `high` decide, see the module; those of the seeds, of the examples, and of the bootstrap that chooses
    learning rates anew stand beside them. `p_value` is two-sided, of Student's paired t test over the `n` seeds.
    """

    estimate: float = NAN
    low: float = NAN
    high: float = NAN
    seeds_low: float = NAN
    seeds_high: float = NAN
    examples_low: float = NAN
    examples_high: float = NAN
    choice_low: float = NAN
    choice_high: float = NAN
    p_value: float = NAN
    n: int = 0
    examples: int = 0


def verdicts(frame: pd.DataFrame, claimed: pd.Series, family: Any) -> pd.DataFrame:
    """Rows of estimates with `p_holm` behind `p_value`, and `verdict`.

    Holm's correction is over the `claimed` rows of equal values in the columns `family`; the others get no verdict.
    `holds`: the estimate is positive, the interval excludes 0, and p_holm < 5 %; `contradicted`: likewise, negative;
    else `open`; `–` without an interval or a p-value.
    """
    frame = frame.copy()
    p = frame["p_value"].where(claimed)
    corrected = p.groupby([frame[key] for key in family]).transform(lambda some: holm(list(some)))
    decided = (corrected < LEVEL) & ((frame["low"] > 0) | (frame["high"] < 0))
    verdict = np.where(decided, np.where(frame["estimate"] > 0, HOLDS, CONTRADICTED), OPEN)
    frame.insert(int(frame.columns.get_loc("p_value")) + 1, "p_holm", corrected)  # type: ignore[arg-type]
    frame["verdict"] = pd.Series(verdict, frame.index).where(
        claimed & frame["low"].notna() & p.notna(), NONE
    )
    return frame


def of_values(values: Sequence[float]) -> Estimate:
    """One value per seed and nothing else; one seed, or equal values, give no interval."""
    kept = [round(float(value), DIGITS) for value in values]
    if len(kept) < 2:
        return Estimate(kept[0], n=1) if kept else Estimate()
    low, high = student_interval(kept)
    return Estimate(fmean(kept), low, high, low, high, p_value=paired_t(kept), n=len(kept))


def of_examples(values: Any, choice: tuple[float, float] = (NAN, NAN)) -> Estimate:
    """One value per seed and test example, (seeds, examples), and the interval of `choice_interval`; see the module.

    With one seed, or equal means, only the interval over examples is given, and none that decides.
    """
    alone = of_values(values.mean(axis=1))
    low, high = bootstrap(values.mean(axis=0))
    below = above = NAN
    if not np.isnan(alone.seeds_high):
        half = alone.seeds_high - alone.estimate
        below = alone.estimate - sqrt(half**2 + (alone.estimate - low) ** 2)
        above = alone.estimate + sqrt(half**2 + (high - alone.estimate) ** 2)
        below, above = np.fmin(below, choice[0]), np.fmax(above, choice[1])
    ends: dict[str, Any] = {"low": below, "high": above, "examples_low": low, "examples_high": high}
    ends |= {"choice_low": choice[0], "choice_high": choice[1]}
    ends = {key: round(value, DIGITS) for key, value in ends.items()}
    return replace(alone, **ends, examples=values.shape[1])


def bootstrap(values: Any) -> tuple[float, float]:
    """Percentile interval of the mean over test examples."""
    means = _counts(len(values)) @ np.asarray(values, float) / len(values)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def choice_interval(
    seeds: Sequence[int], value: Callable[[tuple[int, ...]], Any]
) -> tuple[float, float]:
    """Percentile interval over resampled seeds, all enumerated, and examples, each resample with its own rates.

    `value`: a resample of the seeds -> the contrast per test example, at the learning rates that these seeds choose;
    None where they choose none.
    """
    n = len(seeds)
    means, weights = [], []
    for pick in combinations_with_replacement(seeds, n):
        examples = value(pick)
        if examples is not None:
            means.append(_counts(len(examples)) @ examples / len(examples))
            weights.append(factorial(n) / prod(factorial(pick.count(s)) for s in set(pick)))
    if not means:
        return NAN, NAN
    found = np.concatenate(means)
    order = np.argsort(found, kind="stable")
    reached = np.cumsum(np.repeat(weights, RESAMPLES)[order])
    tail = np.array([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]) * reached[-1]
    low, high = found[order][np.searchsorted(reached, tail)]
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
    """A weighted sum over settings for every seed that all have: (seeds,), or (seeds, examples)."""
    seeds = common_seeds([values for _, values in terms])
    return np.array([sum(weight * values[seed] for weight, values in terms) for seed in seeds])


def common_seeds(settings: Sequence[Mapping[int, Any]]) -> list[int]:
    """The seeds that all settings have, sorted."""
    return sorted(set.intersection(*map(set, settings))) if settings else []
