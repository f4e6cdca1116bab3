"""The scores that methods are compared on: the paper's accuracies, or those of runs."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.paper.names import TASKS
from analysis.paper.printed_numbers import BASELINES, OURS, Paper
from analysis.select.cell_runs import over_seeds
from analysis.stats.method_comparison import AVERAGE

ORDER = (*OURS, *BASELINES)  # our methods first, so that a positive difference speaks for them


@dataclass(frozen=True)
class Family:
    """Cells that are tested together, under one correction."""

    name: str
    cells: Any
    methods: list[str]


def paper_runs(paper: Paper) -> pd.DataFrame:
    """Table 11 as `analysis.stats.method_comparison` wants it."""
    rows = paper.rows("table11")
    return rows[["model", "task", "method", "run"]].assign(accuracy=rows["value"])


def paper_families(paper: Paper) -> list[Family]:
    """All cells of Tables 1 and 3; the same, and Table 3 alone, without MeZO-Adam, which Mistral-7B lacks."""
    cells: Any = paper.cells
    kept = ((cells["table"] == 3) & (cells["status"] != "absent")) | (
        (cells["table"] == 1) & (cells["quantity"] == "mean")
    )
    cells = cells[kept & (cells["task"] != AVERAGE)]
    cells = cells[["table", "model", "task", "method"]].assign(
        accuracy=cells["value"], n=[TASKS[task]["test_size"] for task in cells["task"]]
    )
    without_adam = [method for method in ORDER if method != "mezo_adam"]
    return [
        Family("Tables 1 and 3, all cells", cells, list(ORDER)),
        Family("Tables 1 and 3, without MeZO-Adam", cells, without_adam),
        Family("Table 3, without MeZO-Adam", cells[cells["table"] == 3], without_adam),
    ]


def measured_runs(runs: Any) -> pd.DataFrame:
    """Accuracies in % of the runs at the chosen learning rates; of a collapsed one 0."""
    ended = runs["status"].isin(["finished", "collapsed"])
    done = runs[runs["chosen"] & ended & runs["optimizer"].isin(ORDER)]
    rows = done[["model", "task", "optimizer", "seed"]].rename(
        columns={"optimizer": "method", "seed": "run"}
    )
    return rows.assign(accuracy=100 * done["test_accuracy"].astype(float).fillna(0.0))


def measured_cells(runs: Any) -> pd.DataFrame:
    """One accuracy per model, task and method: the mean over seeds, a collapsed one as 0; NaN if all collapsed."""
    means: Any = over_seeds(runs)
    means = means[means["status"].isin(["finished", "collapsed"]) & means["optimizer"].isin(ORDER)]
    sizes = runs.groupby(["model", "task"])["test_n"].max()
    rows = means[["model", "task", "optimizer"]].rename(columns={"optimizer": "method"})
    n = [sizes[model, task] for model, task in zip(rows["model"], rows["task"], strict=True)]
    ended = means["n"] / (means["n"] + means["collapsed"])
    accuracy = 100 * means["test_mean"].astype(float) * ended
    return rows.assign(accuracy=accuracy, n=n).reset_index(drop=True)
