"""Methods against each other: per task over runs, over all model × task cells, and by rank. No file, no log.

Two frames go in. `runs` has one row per run of a cell that was run several times: `model`, `task`, `method`, `run`,
`accuracy` (%). `cells` has one row per model, task and method: `model`, `task`, `method`, `accuracy` (%; NaN for a
collapse), `n` (test examples). A method without a row for a cell was not run there.
"""

from itertools import combinations
from math import sqrt
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from analysis.paper.names import method_label
from analysis.stats.intervals import (
    LEVEL,
    Ranking,
    bootstrap_interval,
    holm,
    ranking,
    sign_test,
    student_interval,
    wilcoxon_exact,
)

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
                    rows.append(_interval_row(str(model), str(task), first, second, values))
    return pd.DataFrame(rows)


def _interval_row(
    model: str, task: str, first: str, second: str, values: list[float]
) -> dict[str, Any]:
    low, high = bootstrap_interval(values)
    student_low, student_high = student_interval(values)
    return {
        "model": model,
        "task": task,
        "first": first,
        "second": second,
        "n": len(values),
        "difference": fmean(values),
        "low": low,
        "high": high,
        "student_low": student_low,
        "student_high": student_high,
    }


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
    rows = [
        _pair_row(cells, first, second)
        for first, second in combinations([m for m in methods if m in set(cells["method"])], 2)
    ]
    frame = pd.DataFrame(rows)
    for test in ("wilcoxon", "sign"):
        column = frame.columns.get_loc(f"{test}_p")
        frame.insert(int(column) + 1, f"{test}_holm", holm(list(frame[f"{test}_p"])))  # type: ignore[arg-type]
    return frame


def _pair_row(cells: Any, first: str, second: str) -> dict[str, Any]:
    table = cells[cells["method"].isin([first, second])].set_index(["model", "task", "method"])
    sizes = cells.set_index(["model", "task"])["n"]
    sizes = sizes[~sizes.index.duplicated()]
    both = table["accuracy"].fillna(-np.inf).unstack("method").dropna()
    a, b = both[first], both[second]
    finite = np.isfinite(a) & np.isfinite(b)
    differences = [float(d) for d in (a - b)[finite]]
    noise = [
        TWO_SIDED * sqrt((x * (100 - x) + y * (100 - y)) / sizes[cell])
        for cell, x, y in zip(both.index[finite], a[finite], b[finite], strict=True)
    ]
    wins, losses = int((a > b).sum()), int((a < b).sum())
    return {
        "first": first,
        "second": second,
        "cells": len(both),
        "wins": wins,
        "ties": len(both) - wins - losses,
        "losses": losses,
        "left_out": len(both) - len(differences),
        "mean_difference": fmean(differences) if differences else float("nan"),
        "median_difference": float(np.median(differences)) if differences else float("nan"),
        "wilcoxon_p": wilcoxon_exact(list((a - b).fillna(0.0)))[1],
        "sign_p": sign_test(wins, losses),
        "within_noise": sum(abs(d) <= limit for d, limit in zip(differences, noise, strict=True)),
    }


def ranks(cells: Any, methods: list[str]) -> tuple[list[str], Ranking]:
    """The average ranks of the methods over the cells that all of them were run on; a collapse ranks last.

    Raises:
        ValueError: fewer than 3 methods or 2 common cells.
    """
    kept = [method for method in methods if method in set(cells["method"])]
    table = (
        cells[cells["method"].isin(kept)]
        .assign(accuracy=lambda frame: frame["accuracy"].fillna(-np.inf))
        .pivot(index=["model", "task"], columns="method", values="accuracy")
    )
    return kept, ranking(table[kept].dropna().to_numpy().tolist())


def rank_frame(family: str, kept: list[str], result: Ranking) -> pd.DataFrame:
    """The numbers of a rank plot: a row per method, best first."""
    frame = pd.DataFrame(
        {
            "family": family,
            "method": kept,
            "average_rank": result.average,
            "cells": result.cells,
            "friedman_p": result.p_value,
            "critical_difference": result.critical_difference,
        }
    )
    return frame.sort_values("average_rank", kind="stable", ignore_index=True)


def conclusion(tests: pd.DataFrame, differences: pd.DataFrame, ours: str, others: list[str]) -> str:
    """What the data can and cannot say about one method against others, in one sentence made of the numbers."""
    rows = [_facing(tests, ours, other) for other in others]
    found = [row for row in rows if row is not None]
    if not found:
        return f"{method_label(ours)} was run on no cell together with another method: nothing can be said."
    firm = [row for row in found if row["wilcoxon_holm"] < LEVEL and row["mean_difference"] > 0]
    open_ = [row for row in found if row not in firm]
    cells = max(row["cells"] for row in found)

    def named(rows: list[dict[str, Any]]) -> str:
        return ", ".join(
            f"{method_label(row['other'])} ({row['wins']} of {row['cells']} cells, "
            f"{row['mean_difference']:+.2f} points, p = {row['wilcoxon_holm']:.2g})"
            for row in rows
        )

    can = f"Over up to {cells} model × task cells taken as independent, which they are not, {method_label(ours)} "
    can += f"is above {named(firm)}" if firm else "is reliably above no other method"
    can += f" and not reliably above {named(open_)}" if firm and open_ else ""
    can += f" (it faced {named(open_)})" if open_ and not firm else ""
    within, compared = (
        sum(row["within_noise"] for row in found),
        sum(row["compared"] for row in found),
    )
    cannot = f"; {within} of the {compared} single differences are no larger than the chance of the test examples alone"
    return can + cannot + _runs_clause(differences, ours, others) + "."


def _runs_clause(differences: pd.DataFrame, ours: str, others: list[str]) -> str:
    """What the repeated runs add."""
    if differences.empty:
        return ", and without repeated runs nothing can be said about the spread between seeds"
    pair = differences[["first", "second"]]
    mine = differences[
        ((pair["first"] == ours) & pair["second"].isin(others))
        | ((pair["second"] == ours) & pair["first"].isin(others))
    ]
    single: Any = mine[mine["task"] != AVERAGE]
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


def _facing(tests: Any, ours: str, other: str) -> dict[str, Any] | None:
    """A row of the tests as seen from one method."""
    for row in tests.to_dict("records"):
        if (row["first"], row["second"]) == (ours, other):
            seen = dict(row)
        elif (row["first"], row["second"]) == (other, ours):
            seen = dict(row) | {"wins": row["losses"], "losses": row["wins"]}
            seen["mean_difference"] = -row["mean_difference"]
        else:
            continue
        return seen | {"other": other, "compared": row["cells"] - row["left_out"]}
    return None
