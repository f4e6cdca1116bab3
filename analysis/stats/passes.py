"""Forward passes until a loss is reached, with censoring; and the area under a loss curve.

A run reaches a level L at the first of two successive evaluations whose losses are at or below L. A run that does not
is censored: it counts with its whole budget, so means are restricted to the budget (restricted mean survival time,
Royston and Parmar 2013). Lines are compared with the base over equal seeds, by the ratio of their passes on the log
scale. A pair of which both runs are censored counts with a ratio of 1.
"""

import numpy as np
import pandas as pd

from analysis.stats.inference import paired_estimates


def passes_to(curve: pd.DataFrame, level: float, budget: float) -> tuple[float, bool]:
    """Returns the forward passes at which a run reaches `level`, and whether it does; otherwise its budget.

    Args:
        curve: One run's evaluations: `forwards` (forward passes so far) and `loss` (nats, NaN reaches nothing).
        level: L, nats.
        budget: Forward passes of the whole run.
    """
    ordered = curve.sort_values("forwards")
    below = ordered["loss"].to_numpy() <= level
    first = np.flatnonzero(below[:-1] & below[1:])
    return (float(ordered["forwards"].iloc[first[0]]), True) if len(first) else (budget, False)


def area(curve: pd.DataFrame) -> float:
    """Returns the mean loss over the logarithm of forward passes, by the trapezoid rule, nats.

    Args:
        curve: One run's evaluations behind the first step: `forwards` > 0 and `loss`, two rows at least.
    """
    ordered = curve.sort_values("forwards")
    at, loss = np.log(ordered["forwards"].to_numpy(float)), ordered["loss"].to_numpy(float)
    return float(np.trapezoid(loss, at) / (at[-1] - at[0]))


def ratios(runs: pd.DataFrame, base: str) -> pd.DataFrame:
    """Returns a row per line: its forward passes to a level over those of the line `base`, paired by seed.

    Args:
        runs: A row per run: `line`, `seed`, `passes` and `reached`, as of `passes_to`.
        base: The line that the others are compared with.

    Returns:
        Indexed by line: `passes` (restricted mean), `reached` and `seeds` (numbers of runs), `ratio`, `low` and `high`
        (95 %, Student on the log scale), `p_value` (of a ratio of 1), and `spread`, the standard deviation of the log
        ratios. The base has no ratio.
    """
    theirs = runs[runs["line"] == base].set_index("seed")["passes"]
    other = runs[runs["line"] != base]
    logs = (other["passes"] / other["seed"].map(theirs)).map(np.log)
    found = paired_estimates(logs, [other["line"]])
    means = runs.groupby("line", sort=False).agg(
        passes=("passes", "mean"), reached=("reached", "sum"), seeds=("seed", "size")
    )
    scaled = found[["estimate", "low", "high"]].rename(columns={"estimate": "ratio"}).map(np.exp)
    return means.join(scaled).join(found[["p_value", "spread"]])
