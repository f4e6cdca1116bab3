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
from math import sqrt
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats.intervals import (
    DIGITS,
    LEVEL,
    NAN,
    RESAMPLES,
    bootstrap,
    holm,
    paired_t,
    resample_counts,
    resamples,
    student_interval,
    weighted_ends,
)

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


def verdicts(frame: pd.DataFrame, claimed: pd.Series) -> pd.DataFrame:
    """Rows of estimates with `p_holm` behind `p_value`, and `verdict`.

    Holm's correction is over the `claimed` rows of equal `claim`; the others get no verdict.
    `holds`: the estimate is positive, the interval excludes 0, and p_holm < 5 %; `contradicted`: likewise, negative;
    else `open`; `–` without an interval or a p-value.
    """
    frame = frame.copy()
    p = frame["p_value"].where(claimed)
    corrected = p.groupby(frame["claim"]).transform(lambda some: holm(list(some)))
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


def of_examples(values: Any, choice: tuple[float, float]) -> Estimate:
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


def choice_interval(
    seeds: Sequence[int], value: Callable[[tuple[int, ...]], Any]
) -> tuple[float, float]:
    """Percentile interval over resampled seeds, all enumerated, and examples, each resample with its own rates.

    `value`: a resample of the seeds -> the contrast per test example, at the learning rates that these seeds choose;
    None where they choose none.
    """
    means, weights = [], []
    for pick, ways in resamples(len(seeds)):
        examples = value(tuple(seeds[i] for i in pick))
        if examples is not None:
            means.append(resample_counts(len(examples)) @ examples / len(examples))
            weights.append(ways)
    if not means:
        return NAN, NAN
    return weighted_ends(np.concatenate(means), np.repeat(weights, RESAMPLES))


def contrast(terms: Sequence[tuple[float, Mapping[int, Any]]]) -> Any:
    """A weighted sum over settings for every seed that all have: (seeds,), or (seeds, examples)."""
    seeds = common_seeds([values for _, values in terms])
    return np.array([sum(weight * values[seed] for weight, values in terms) for seed in seeds])


def common_seeds(settings: Sequence[Mapping[int, Any]]) -> list[int]:
    """The seeds that all settings have, sorted."""
    return sorted(set.intersection(*map(set, settings))) if settings else []
