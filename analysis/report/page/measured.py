"""The paper's cells beside what has been measured for them, and how to run what has not."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.paper.names import model_label, task_label
from analysis.paper.printed_numbers import AVERAGE
from analysis.report.page.tables import Cell, PageTable, Row
from analysis.report.style import look
from analysis.select.cell_runs import variant

QUANTITIES = {
    "mean": "accuracy, %",
    "test_accuracy": "accuracy, %",
    "memory_gb": "memory, GB",
    "step_ms": "ms per step",
}
COLUMNS = (
    *("table", "model", "task", "method", "precision", "setting"),
    *("paper", "measured", "difference", "n", "lr"),
)
NO_TASK = "-"  # an average, or a memory: no choice of a task shows it
MEASURED = COLUMNS.index("measured")
BELOW = (
    "Accuracies are percentages of the test examples, at the step of best validation accuracy and at the learning "
    "rate of best validation accuracy; where there are several seeds, mean ± sample standard deviation. "
    "n: finished runs behind a number; † some of the cell's runs are still lacking. Bold as in the paper; of measured "
    "numbers, once a whole group has been measured. `–` has not been measured here: point at it for the command that "
    "runs it. `*` collapsed.",
)


def paper_table(beside: pd.DataFrame, filled: pd.DataFrame) -> PageTable:
    """Every accuracy, memory and time that the paper prints, beside what was measured.

    Args:
        beside: see `analysis.select.paper_cells.beside`.
        filled: the cells of all sweeps, see `analysis.select.cell_runs.fill`.
    """
    shown = beside[beside["quantity"].isin(list(QUANTITIES)) & (beside["status"] != "absent")]
    stds = {_key(row): row for row in beside[beside["quantity"] == "std"].to_dict("records")}
    precisions = _precisions(filled)
    grids = {str(sweep): rows for sweep, rows in filled.groupby("sweep")}
    rows = []
    for cell in shown.to_dict("records"):
        precision = precisions.get((cell["sweep"], cell["model"]), "")
        measured = _measured(cell, stds.get(_key(cell)), grids.get(cell["sweep"]))
        rows.append(_row(cell, stds.get(_key(cell)), precision, measured))
    title = "The paper's cells: printed and measured"
    return PageTable("paper-measured", title, COLUMNS, rows, BELOW, stack=True)


def command(cell: Mapping[Any, Any], grid: pd.DataFrame | None) -> str:
    """What runs a cell of the paper, at all learning rates and seeds.

    Args:
        cell: a row of the frame of `analysis.select.paper_cells`.
        grid: the cells of its sweep.
    """
    choices = [f"sweep={cell['sweep']}"]
    for name, value in (
        ("model", cell["model"]),
        ("task", cell["task"]),
        ("optimizer", cell["method"]),
    ):
        if value and value != AVERAGE and grid is not None and grid[name].nunique() > 1:
            choices.append(f"{name}={value}")
    varied = variant(str(grid["variant"].iloc[0])) if grid is not None and len(grid) else {}
    if "optimizer.k" in varied and cell["k"]:
        choices.append(f"optimizer.k={cell['k']}")
    if "optimizer.adaptive_noise" in varied and cell["adaptive_noise"]:
        choices.append(f"optimizer.adaptive_noise={str(cell['adaptive_noise'] == 'with').lower()}")
    return " ".join(["python -m launch.submit", *choices])


def _key(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in ("table", "model", "task", "method"))


def _precisions(filled: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Sweep and model -> the precision that the sweep gives it."""
    rows = filled.drop_duplicates(["sweep", "model"]).to_dict("records")
    return {(str(row["sweep"]), str(row["model"])): str(row["precision"]) for row in rows}


def _row(
    cell: Mapping[Any, Any], std: Mapping[Any, Any] | None, precision: str, measured: Sequence[Cell]
) -> Row:
    method = str(cell["method"] or "bszo")
    spread = f" ± {std['printed']}" if std is not None and cell["quantity"] == "mean" else ""
    average = cell["task"] == AVERAGE
    names = [
        Cell(f"{cell['table']} {cell['part']}".strip(), sort=cell["table"]),
        Cell(model_label(cell["model"])),
        Cell("average" if average else task_label(cell["task"]) if cell["task"] else "–"),
        Cell(look(method).label),
        Cell(precision or "–"),
        Cell(_words(cell)),
    ]
    printed = Cell(f"{cell['printed']}{spread}", kind="paper", bold=bool(cell["bold"]))
    facet = {"model": cell["model"], "method": method, "precision": precision}
    task = NO_TASK if average or not cell["task"] else cell["task"]
    return Row([*names, printed, *measured], facet | {"task": task})


def _measured(
    cell: Mapping[Any, Any], std: Mapping[Any, Any] | None, grid: pd.DataFrame | None
) -> list[Cell]:
    """Measured, difference, n and learning rate."""
    dash = Cell("–", sort=-999.0)
    lacking = int(cell["lacking"])
    note = f"Runs lacking: {lacking}. To run them: {command(cell, grid)}" if lacking else ""
    note = ". ".join(part for part in (str(cell["remark"]), note) if part)
    runs = tuple(str(cell["run_ids"]).split())
    if pd.isna(cell["measured"]):
        if cell["here"] == "collapsed":
            return [
                Cell("*", sort=-1.0, runs=runs, note=note, kind="collapsed"),
                dash,
                Cell("0"),
                dash,
            ]
        if cell["here"] == "nowhere":
            note = "No sweep asks for this cell."
        return [Cell("–", sort=-2.0, note=note, kind="missing"), dash, Cell(str(cell["n"])), dash]
    value = float(cell["measured"])
    spread = ""
    if std is not None and cell["quantity"] == "mean" and pd.notna(std["measured"]):
        spread = f" ± {std['measured']:.2f}"
    shown = f"{value:.2f}{spread}{'†' * bool(lacking)}"
    gap = f"{cell['difference']:+.2f}".replace("-", "−") if pd.notna(cell["difference"]) else "–"
    lr = dash if pd.isna(cell["lr"]) else Cell(f"{cell['lr']:g}", sort=float(cell["lr"]))
    return [
        Cell(shown, value, runs, note, "measured", bool(cell["here_bold"])),
        Cell(gap),
        Cell(str(cell["n"])),
        lr,
    ]


def _words(cell: Mapping[Any, Any]) -> str:
    parts = [f"run {cell['run']}"] if cell["run"] else []
    parts += [f"k = {cell['k']}"] if cell["k"] else []
    if cell["part"] in ("c", "d"):
        parts.append(f"{cell['adaptive_noise']} adaptive noise")
    elif cell["part"]:
        parts.append("m = k" if cell["part"] == "a" else "m = k + 1")
    return ", ".join(parts or [QUANTITIES[cell["quantity"]]])
