"""Methods against each other: per task over runs, over all model × task cells, and by rank. No file, no log.

Two frames go in. `runs` has one row per run of a cell that was run several times: `task`, `method`, `run`, `accuracy`
(%). `cells` has one row per model, task and method: `model`, `task`, `method`, `accuracy` (%; NaN for a collapse),
`n` (test examples). A method without a row for a cell was not run there.
"""

from collections.abc import Sequence
from itertools import combinations
from math import sqrt
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis.paper.names import method_label
from analysis.paper.printed_numbers import AVERAGE
from analysis.stats import intervals

TWO_SIDED = 1.96  # standard errors of a 95 % interval


def paired_differences(runs: pd.DataFrame, methods: list[str]) -> pd.DataFrame:
    """Each pair of methods on each task: mean difference over runs with its intervals, in points.

    Runs are paired by their number. The task `avg` is the average over the tasks.

    Returns:
        Columns `task`, `first`, `second`, `n`, `difference` (first − second), `low`, `high` (Student, 95 %).
    """
    table = runs.pivot(index="run", columns=["task", "method"], values="accuracy")
    tables: dict[str, Any] = {task: table[task] for task in runs["task"].unique()}
    tables[AVERAGE] = sum(tables.values()) / len(tables)
    rows = []
    for task, of_task in tables.items():
        for first, second in combinations(methods, 2):
            values = (of_task[first] - of_task[second]).round(intervals.DIGITS).tolist()
            row = {"task": task, "first": first, "second": second, "n": len(values)}
            row["difference"] = fmean(values)
            row["low"], row["high"] = intervals.student_interval(values)
            rows.append(row)
    return pd.DataFrame(rows)


def cell_tests(cells: pd.DataFrame, methods: list[str]) -> pd.DataFrame:
    """Each pair of methods over all cells that both were run on.

    A collapse has the worst rank: in Wilcoxon's test its difference has the highest one; two collapses count as a tie.
    Mean and median are over the cells that both finished. Holm's correction is over all pairs of the frame.

    Returns:
        Columns `first`, `second`, `cells`, `wins`, `ties`, `losses` (of first), `left_out` (of the mean),
        `mean_difference`, `median_difference` (points), `within_noise`: how many differences are smaller than 1.96
        standard errors of two independent test samples; `wilcoxon_p`, `wilcoxon_holm`.
    """
    table, sizes = _scores(cells), cells.groupby(["model", "task"])["n"].first()
    frame = pd.DataFrame([_pair_row(table, sizes, *pair) for pair in combinations(methods, 2)])
    return frame.assign(wilcoxon_holm=intervals.holm(list(frame["wilcoxon_p"])))


def _scores(cells: pd.DataFrame) -> pd.DataFrame:
    """Accuracies, a row per cell and a column per method: −∞ for a collapse, NaN where a method was not run."""
    collapsed = cells.assign(accuracy=cells["accuracy"].fillna(-np.inf))
    return collapsed.pivot(index=["model", "task"], columns="method", values="accuracy")


def _pair_row(table: pd.DataFrame, sizes: pd.Series, first: str, second: str) -> dict[str, Any]:
    both = table[[first, second]].dropna()
    a, b = both[first], both[second]
    finite = both.index[np.isfinite(a) & np.isfinite(b)]
    x, y = a[finite], b[finite]
    differences = x - y
    noise = TWO_SIDED * np.sqrt((x * (100 - x) + y * (100 - y)) / sizes[finite])
    wins, losses = int((a > b).sum()), int((a < b).sum())
    return {
        "first": first,
        "second": second,
        "cells": len(both),
        "wins": wins,
        "ties": len(both) - wins - losses,
        "losses": losses,
        "left_out": len(both) - len(finite),
        "mean_difference": fmean(differences),
        "median_difference": float(differences.median()),
        "within_noise": int((differences.abs() <= noise).sum()),
        "wilcoxon_p": wilcoxon_exact(list((a - b).fillna(0.0))),
    }


def wilcoxon_exact(differences: Sequence[float]) -> float:
    """The exact p-value of Wilcoxon's signed-rank test of symmetry about 0.

    Zeros are left out. Ties share their mean rank; the p-value, two-sided, is counted over all signs of those ranks,
    so that it stays exact with ties, where SciPy's is not. An infinite difference, a collapse, has the highest rank.

    Source: Wilcoxon, Biometrics Bulletin 1, 1945; ties as in Hollander and Wolfe, Nonparametric Statistical Methods.
    """
    if np.isnan(differences).any():
        raise ValueError("a difference is not a number")
    kept = np.round(np.asarray(differences, float), intervals.DIGITS)
    kept = kept[kept != 0]
    if not len(kept):
        return 1.0
    doubled = np.rint(2 * stats.rankdata(np.abs(kept))).astype(int)
    ways = [1] + [0] * int(doubled.sum())  # ways[s]: sign choices with positive ranks of sum s / 2
    for rank in doubled:
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    positive = int(doubled[kept > 0].sum())
    smaller = min(positive, int(doubled.sum()) - positive)
    return min(1.0, 2 * sum(ways[: smaller + 1]) / 2 ** len(kept))


def ranks(cells: pd.DataFrame, methods: list[str]) -> pd.DataFrame:
    """The average ranks of the methods over the cells that all of them were run on; a collapse ranks last.

    Source: Demsar, "Statistical comparisons of classifiers over multiple data sets", JMLR 7, 2006.

    Returns:
        A row per method, best first: `method`, `average_rank` (1 is the best), and of them all `cells`; `friedman_p`,
        of Friedman's test that all rank alike; `critical_difference`, Nemenyi's: average ranks that are further apart
        differ at 5 %. It is missing where Friedman's test does not reject at 5 %, or for fewer than 10 cells, where
        its approximation is poor.
    """
    table = (-_scores(cells)[methods].dropna()).rank(axis=1)
    (n, k), alike = table.shape, (table.nunique(axis=1) == 1).all()
    p_value = 1.0 if alike else float(stats.friedmanchisquare(*table.to_numpy().T).pvalue)
    quantile = float(stats.studentized_range.ppf(1 - intervals.LEVEL, k, np.inf)) / sqrt(2)
    difference = quantile * sqrt(k * (k + 1) / (6 * n))
    frame = pd.DataFrame({"method": methods, "average_rank": table.mean().tolist(), "cells": n})
    frame["friedman_p"] = p_value
    frame["critical_difference"] = difference if p_value < intervals.LEVEL and n >= 10 else np.nan
    return frame.sort_values("average_rank", kind="stable", ignore_index=True)


def conclusion(tests: pd.DataFrame, differences: pd.DataFrame, ours: str, others: list[str]) -> str:
    """What the numbers can and cannot say about one method against others, in one sentence made of them.

    Args:
        tests: of `cell_tests`, where this method is the first of each pair with another.
        differences: of `paired_differences`, likewise.
        ours: the method.
        others: methods.
    """
    found = tests[(tests["first"] == ours) & tests["second"].isin(others)]
    is_firm = (found["wilcoxon_holm"] < intervals.LEVEL) & (found["mean_difference"] > 0)
    parts = []
    for words, rows in (("above", found[is_firm]), ("not reliably above", found[~is_firm])):
        named = ", ".join(
            f"{method_label(row['second'])} ({row['wins']} of {row['cells']} cells, "
            f"{row['mean_difference']:+.2f} points, p = {row['wilcoxon_holm']:.2g})"
            for row in rows.to_dict("records")
        )
        parts += [f"{words} {named}"] if named else []
    compared = (found["cells"] - found["left_out"]).sum()
    pairs = differences[(differences["first"] == ours) & differences["second"].isin(others)]
    single = pairs[pairs["task"] != AVERAGE]
    n = int(single["n"].max())
    apart = int(((single["low"] > 0) | (single["high"] < 0)).sum())
    return (
        f"Over up to {found['cells'].max()} model × task cells taken as independent, which they are not, "
        f"{method_label(ours)} is {' and '.join(parts)}; {found['within_noise'].sum()} of the {compared} single "
        "differences are no larger than the chance of the test examples alone, and on a single task the "
        f"{n} runs exclude a difference of zero in {apart} of {len(single)} comparisons by Student's interval, while "
        f"no paired sign or rank test of {n} runs can give less than p = {2 / 2**n:.4g}."
    )
