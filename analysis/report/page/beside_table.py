"""The page's table of every number that the paper prints, beside what was measured."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.paper.names import method_label, model_label, task_label
from analysis.paper.printed_numbers import AVERAGE
from analysis.report.table import ABSENT, COLLAPSED, Cell, Column, Row, Table, number
from analysis.select.cell_runs import EDGE, variant

QUANTITIES = {
    "mean": "accuracy, %",
    "test_accuracy": "accuracy, %",
    "memory_gb": "memory, GB",
    "step_ms": "ms per step",
}
NO_TASK = "-"  # an average, or a memory: no choice of a task shows it
KEYS = ["table", "model", "task", "method"]
CAPTION = (
    "Accuracies are percentages of the test examples, at the step of best validation accuracy and the chosen "
    "learning rate; with several seeds, mean ± sample standard deviation. n: finished runs; † some of the runs "
    "lack. Bold as in the paper; of measured numbers, once a whole group has been measured. `–`: not measured "
    "here; point at it for the command that runs it. `*` collapsed."
)


def beside_table(beside: pd.DataFrame, filled: pd.DataFrame) -> Table:
    """Every accuracy, memory and time that the paper prints, beside what was measured."""
    spreads = beside[beside["quantity"] == "std"].to_dict("records")
    stds = {tuple(row[key] for key in KEYS): row for row in spreads}
    precisions = filled.drop_duplicates(["sweep", "model"]).set_index(["sweep", "model"])[
        "precision"
    ]
    grids = {str(sweep): rows for sweep, rows in filled.groupby("sweep")}
    shown = beside[beside["quantity"].isin(list(QUANTITIES)) & (beside["status"] != "absent")]
    records = shown.to_dict("records")
    for cell in records:
        mean = cell["quantity"] == "mean"
        cell["std"] = stds.get(tuple(cell[key] for key in KEYS)) if mean else None
        cell["precision"] = precisions.get((cell["sweep"], cell["model"]), "")
        cell["method"] = str(cell["method"] or "bszo")
        tip = ""
        if lacking := int(cell["lacking"]):
            runs = run_command(cell, grids.get(cell["sweep"]))
            tip = f"Runs lacking: {lacking}. To run them: {runs}"
        cell["tip"] = ". ".join(part for part in (str(cell["remark"]), tip) if part)
    columns: dict[str, Column] = {
        "table": lambda cell: f"{cell['table']} {cell['part']}".strip(),
        "model": lambda cell: model_label(cell["model"]),
        "task": lambda cell: (
            "average" if cell["task"] == AVERAGE else task_label(cell["task"]) or ABSENT
        ),
        "method": lambda cell: method_label(cell["method"]),
        "precision": lambda cell: cell["precision"] or ABSENT,
        "setting": _setting,
        "paper": _printed,
        "measured": _measured,
        "difference": ("difference", "+.2f"),
        "n": lambda cell: number(0 if _nothing(cell) == COLLAPSED else cell["n"], ".0f"),
        "lr": lambda cell: number(
            None if _nothing(cell) else cell["lr"], "g", notes=(EDGE,) * bool(cell["at_edge"])
        ),
    }
    facets = [
        {key: cell[key] for key in ("model", "method", "precision")}
        | {"task": NO_TASK if cell["task"] in (AVERAGE, "") else cell["task"]}
        for cell in records
    ]
    title = "The paper's cells: printed and measured"
    more = {"names": 6, "name": "paper-measured", "caption": [CAPTION], "facets": facets}
    return Table.of(title, records, columns, **more)


def run_command(cell: Mapping[Any, Any], grid: pd.DataFrame | None) -> str:
    """What runs a cell of the paper, at all learning rates and seeds; `grid` are the cells of its sweep."""
    choices = [f"sweep={cell['sweep']}"]
    if grid is not None:
        names = {"model": cell["model"], "task": cell["task"], "optimizer": cell["method"]}
        choices += [
            f"{name}={value}"
            for name, value in names.items()
            if value not in ("", AVERAGE) and grid[name].nunique() > 1
        ]
        varied = variant(str(grid["variant"].iloc[0]))
        if "optimizer.k" in varied and cell["k"]:
            choices.append(f"optimizer.k={cell['k']}")
        if "optimizer.adaptive_noise" in varied and cell["adaptive_noise"]:
            on = str(cell["adaptive_noise"] == "with").lower()
            choices.append(f"optimizer.adaptive_noise={on}")
    return " ".join(["python -m launch.submit", *choices])


def _printed(cell: Row) -> Cell:
    tail = f" ± {cell['std']['printed']}" if cell["std"] else ""
    value: float | None = None if pd.isna(cell["value"]) else float(cell["value"])
    return Cell(cell["printed"], value, tail=tail, bold=bool(cell["bold"]))


def _nothing(cell: Row) -> str:
    """The mark of a cell without a number; empty if it has one."""
    if pd.notna(cell["measured"]):
        return ""
    return COLLAPSED if cell["here"] == "collapsed" else ABSENT


def _measured(cell: Row) -> Cell:
    known = {"tip": cell["tip"], "runs": str(cell["run_ids"])}
    if mark := _nothing(cell):
        if cell["here"] == "nowhere":
            known["tip"] = "No sweep asks for this cell."
        return Cell(mark, kind="collapsed" if mark == COLLAPSED else "missing", **known)
    std = cell["std"]["measured"] if cell["std"] else None
    tail = f" ± {std:.2f}" if std is not None and pd.notna(std) else ""
    tail += "†" * bool(cell["lacking"])
    bold = bool(cell["here_bold"])
    return number(cell["measured"], ".2f", tail=tail, kind="measured", bold=bold, **known)


def _setting(cell: Row) -> str:
    parts = [f"run {cell['run']}"] if cell["run"] else []
    parts += [f"k = {cell['k']}"] if cell["k"] else []
    if cell["part"] in ("c", "d"):
        parts.append(f"{cell['adaptive_noise']} adaptive noise")
    elif cell["part"]:
        parts.append("m = k" if cell["part"] == "a" else "m = k + 1")
    return ", ".join(parts or [QUANTITIES[cell["quantity"]]])
