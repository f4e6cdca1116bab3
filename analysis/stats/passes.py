"""Forward passes until a loss is reached, with censoring; and the area under a loss curve.

A run reaches a level L at the first of two successive evaluations whose losses are at or below L. A run that does not
is censored: it counts with its whole budget, so means are restricted to the budget (restricted mean survival time,
Royston and Parmar 2013). Lines are compared with the base over equal seeds, by the ratio of their passes on the log
scale. A pair of which both runs are censored counts with a ratio of 1.

Evaluations bound the passes: the level is met behind the last evaluation above it. Ratios that are equal for all seeds
have no interval by Student, and one by these bounds.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.stats.inference import paired_estimates


class Arrival(NamedTuple):
    """When a run reaches a level."""

    passes: float  # Forward passes until then; the budget of a run that does not reach it
    reached: bool  # Whether it does
    after: float  # Forward passes of the evaluation before it; 0 where the first one is at or below the level
    at_end: (
        bool  # Whether the last evaluation alone is at or below the level, which nothing confirms
    )


def passes_to(curve: pd.DataFrame, level: float, budget: float) -> Arrival:
    """Returns when a run reaches `level`, nats.

    `curve` has its evaluations: `forwards` (forward passes so far) and `loss` (nats, NaN reaches nothing). `budget` is
    the forward passes of the whole run.
    """
    ordered = curve.sort_values("forwards")
    below, at = ordered["loss"].to_numpy() <= level, ordered["forwards"].to_numpy(float)
    first = np.flatnonzero(below[:-1] & below[1:])
    before = at[: first[0] if len(first) else len(at) - below[-1]]
    after = float(before[-1]) if len(before) else 0.0
    if len(first):
        return Arrival(float(at[first[0]]), True, after, False)
    return Arrival(budget, False, after, bool(below[-1]))


def area(curve: pd.DataFrame) -> float:
    """Returns the mean loss over the logarithm of forward passes, by the trapezoid rule, nats.

    `curve` has a run's evaluations behind the first step: `forwards` > 0 and `loss`, two rows at least.
    """
    ordered = curve.sort_values("forwards")
    at, loss = np.log(ordered["forwards"].to_numpy(float)), ordered["loss"].to_numpy(float)
    return float(np.trapezoid(loss, at) / (at[-1] - at[0]))


def ratios(runs: pd.DataFrame, base: str) -> pd.DataFrame:
    """Returns a row per line: its forward passes to a level over those of the line `base`, paired by seed.

    Args:
        runs: A row per run: `line`, `seed` and the fields of `Arrival`.
        base: The line that the others are compared with.

    Returns:
        Indexed by line: `passes` (restricted mean); numbers of runs: `seeds`, `reached`, `at_end`, and `at_once`, below
        the level at their first evaluation; `ratio`, `low` and `high` (95 %, Student on the log scale), `p_value` (of a
        ratio of 1), `spread`, the standard deviation of the log ratios; and where that is 0 `least` and `most`, the
        ratios that the evaluations leave open. The base has no ratio.
    """
    runs = runs.assign(
        at_once=runs["reached"].astype(bool) & (runs["after"] == 0),
        before=runs["passes"].where(runs["reached"].astype(bool), np.inf),
    )
    theirs = runs[runs["line"] == base].set_index("seed")
    other = runs[runs["line"] != base]
    passes, before, after = (
        other["seed"].map(theirs[key]) for key in ("passes", "before", "after")
    )
    found = paired_estimates((other["passes"] / passes).map(np.log), [other["line"]])
    bounds = other.assign(least=other["after"] / before, most=other["before"] / after)
    bounds = bounds.groupby("line")[["least", "most"]].agg(_geometric_mean)
    means = runs.groupby("line", sort=False).agg(
        passes=("passes", "mean"),
        seeds=("seed", "size"),
        **{key: (key, "sum") for key in ("reached", "at_end", "at_once")},
    )
    scaled = found[["estimate", "low", "high"]].rename(columns={"estimate": "ratio"}).map(np.exp)
    equal = found.index[found["low"].isna() & found["estimate"].notna()]
    return means.join(scaled).join(found[["p_value", "spread"]]).join(bounds.loc[equal])


def _geometric_mean(values: pd.Series) -> float:
    with np.errstate(divide="ignore"):
        return float(np.exp(np.log(values).mean()))
