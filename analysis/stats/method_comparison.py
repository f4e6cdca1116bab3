"""Methods against each other: per task over runs, over all model × task cells, and by rank. No file, no log.

Two frames go in. `runs` has one row per run of a cell that was run several times: `model`, `task`, `method`, `run`,
`accuracy` (%). `cells` has one row per model, task and method: `model`, `task`, `method`, `accuracy` (%; NaN for a
collapse), `n` (test examples). A method without a row for a cell was not run there.
"""

from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from analysis.paper.names import method_label
from analysis.stats import intervals

TWO_SIDED = 1.96  # standard errors of a 95 % interval
AVERAGE = "avg"


def paired_differences(runs: Any, methods: list[str]) -> pd.DataFrame:
    """Each pair of methods on each task: mean difference over runs with its intervals, in points.

    Runs are paired by their number. The row `avg` pairs the averages over the tasks of a model, where each run number
    has every task.

    Returns:
        Columns `model`, `task`, `first`, `second`, `n`, `difference` (first − second), `low`, `high` (95 %
        percentile bootstrap), `student_low`, `student_high` (95 % Student).
    """
    rows = []
    for model, of_model in runs.groupby("model", sort=False):
        tables = {
            task: of_task.pivot(index="run", columns="method", values="accuracy")
            for task, of_task in of_model.groupby("task", sort=False)
        }
        complete = [table for table in tables.values() if not table.isna().any().any()]
        if len(complete) == len(tables) > 1:
            tables[AVERAGE] = sum(complete) / len(complete)
        for task, table in tables.items():
            for first, second in combinations([m for m in methods if m in table], 2):
                values = [round(float(v), 9) for v in (table[first] - table[second]).dropna()]
                if len(values) > 1:
                    row = {"model": model, "task": task, "first": first, "second": second}
                    row |= {"n": len(values), "difference": fmean(values)}
                    row["low"], row["high"] = intervals.bootstrap_interval(values)
                    row["student_low"], row["student_high"] = intervals.student_interval(values)
                    rows.append(row)
    return pd.DataFrame(rows)


def cell_tests(cells: Any, methods: list[str]) -> pd.DataFrame:
    """Each pair of methods over all cells that both were run on.

    A collapse has the worst rank: it loses the sign test against a number, and in Wilcoxon's test its difference has
    the highest rank; two collapses count as a tie. Mean and median are over the cells that both finished. Holm's
    correction is over all pairs of the frame, for each test on its own.

    Returns:
        Columns `first`, `second`, `cells`, `wins`, `ties`, `losses` (of first), `left_out` (of the mean),
        `mean_difference`, `median_difference` (points), `wilcoxon_p`, `wilcoxon_holm`, `sign_p`, `sign_holm`, and
        `within_noise`: how many differences are smaller than 1.96 standard errors of two independent test samples.
    """
    there = [method for method in methods if method in set(cells["method"])]
    frame = pd.DataFrame([_pair_row(cells, *pair) for pair in combinations(there, 2)])
    for test in ("wilcoxon", "sign"):
        column: Any = frame.columns.get_loc(f"{test}_p")
        frame.insert(int(column) + 1, f"{test}_holm", intervals.holm(list(frame[f"{test}_p"])))  # type: ignore[arg-type]
    return frame


def _pair_row(cells: Any, first: str, second: str) -> dict[str, Any]:
    table = cells[cells["method"].isin([first, second])].set_index(["model", "task", "method"])
    sizes = cells.drop_duplicates(["model", "task"]).set_index(["model", "task"])["n"]
    both = table["accuracy"].fillna(-np.inf).unstack("method").dropna()
    a, b = both[first], both[second]
    finite = both.index[np.isfinite(a) & np.isfinite(b)]
    x, y = a[finite], b[finite]
    differences = (x - y).astype(float)
    noise = TWO_SIDED * np.sqrt((x * (100 - x) + y * (100 - y)) / sizes.reindex(finite))
    wins, losses = int((a > b).sum()), int((a < b).sum())
    return {
        "first": first,
        "second": second,
        "cells": len(both),
        "wins": wins,
        "ties": len(both) - wins - losses,
        "losses": losses,
        "left_out": len(both) - len(finite),
        "mean_difference": fmean(differences) if len(finite) else float("nan"),
        "median_difference": float(differences.median()),
        "wilcoxon_p": intervals.wilcoxon_exact(list((a - b).fillna(0.0)))[1],
        "sign_p": intervals.sign_test(wins, losses),
        "within_noise": int((differences.abs() <= noise).sum()),
    }


def ranks(cells: Any, methods: list[str]) -> pd.DataFrame:
    """The average ranks of the methods over the cells that all of them were run on; a collapse ranks last.

    Returns:
        A row per method, best first: `method`, `average_rank`, and of them all `cells`, `friedman_p`,
        `critical_difference` (see `intervals.ranking`). No rows for fewer than 3 methods or 2 common cells.
    """
    kept = [method for method in methods if method in set(cells["method"])]
    table = (
        cells[cells["method"].isin(kept)]
        .assign(accuracy=lambda frame: frame["accuracy"].fillna(-np.inf))
        .pivot(index=["model", "task"], columns="method", values="accuracy")
    )
    scores = table[kept].dropna()
    if len(kept) < 3 or len(scores) < 2:
        return pd.DataFrame()
    average, p_value, difference = intervals.ranking(scores.to_numpy())
    frame = pd.DataFrame({"method": kept, "average_rank": average, "cells": len(scores)})
    frame = frame.assign(friedman_p=p_value, critical_difference=difference)
    return frame.sort_values("average_rank", kind="stable", ignore_index=True)


def conclusion(tests: pd.DataFrame, differences: pd.DataFrame, ours: str, others: list[str]) -> str:
    """What the data can and cannot say about one method against others, in one sentence made of the numbers."""
    found = _facing(tests, ours, others)
    if found.empty:
        return f"{method_label(ours)} was run on no cell together with another method: nothing can be said."
    is_firm = (found["wilcoxon_holm"] < intervals.LEVEL) & (found["mean_difference"] > 0)

    def named(rows: pd.DataFrame) -> str:
        return ", ".join(
            f"{method_label(row['other'])} ({row['wins']} of {row['cells']} cells, "
            f"{row['mean_difference']:+.2f} points, p = {row['wilcoxon_holm']:.2g})"
            for row in rows.to_dict("records")
        )

    firm, open_ = named(found[is_firm]), named(found[~is_firm])
    can = f"is above {firm}" if firm else "is reliably above no other method"
    can += f" and not reliably above {open_}" if firm and open_ else ""
    can += f" (it faced {open_})" if open_ and not firm else ""
    compared = (found["cells"] - found["left_out"]).sum()
    return (
        f"Over up to {found['cells'].max()} model × task cells taken as independent, which they are not, "
        f"{method_label(ours)} {can}; {found['within_noise'].sum()} of the {compared} single differences are no larger "
        f"than the chance of the test examples alone{_runs_clause(differences, ours, others)}."
    )


def _facing(tests: pd.DataFrame, ours: str, others: list[str]) -> pd.DataFrame:
    """The tests in which one method faces others, as seen from it, in the order of the others."""
    turned = tests.rename(
        columns={"first": "second", "second": "first", "wins": "losses", "losses": "wins"}
    ).assign(mean_difference=-tests["mean_difference"])
    both = pd.concat([tests, turned]).rename(columns={"second": "other"})
    mine = both[(both["first"] == ours) & both["other"].isin(others)]
    return mine.sort_values("other", key=lambda column: column.map(others.index), kind="stable")


def _runs_clause(differences: pd.DataFrame, ours: str, others: list[str]) -> str:
    """What the repeated runs add."""
    single = differences
    if len(single):
        pairs = single[["first", "second"]]
        facing = pairs.isin([ours]).any(axis=1) & pairs.isin(others).any(axis=1)
        single = single[facing & (single["task"] != AVERAGE)]
    if single.empty:
        return ", and without repeated runs nothing can be said about the spread between seeds"
    n = int(single["n"].max())
    boot = int(((single["low"] > 0) | (single["high"] < 0)).sum())
    student = int(((single["student_low"] > 0) | (single["student_high"] < 0)).sum())
    return (
        f", and on a single task the {n} runs exclude a difference of zero in {boot} of {len(single)} "
        f"comparisons by the bootstrap, which is too narrow for {n}, and in {student} by Student's interval, while no "
        f"paired sign or rank test of {n} runs can give less than p = {2 / 2**n:.4g}"
    )
