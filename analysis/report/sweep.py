"""The tables of one sweep: each method at its chosen learning rate, and every learning rate tried.

Written to DIR/<sweep>/: table.{csv,md,tex}, grid.{csv,md}, the loss figure and provenance.json. The csv files hold what
the runs logged, unrounded, in the units of docs/design.md. `–` is a run that has not finished, `*` a collapsed one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.logs.run_file import LogError
from analysis.paper.names import UNTRAINED, method_label
from analysis.report.figures.drawing import write
from analysis.report.figures.overview import overview
from analysis.report.table import (
    ABSENT,
    COLLAPSED,
    Cell,
    Table,
    console,
    latex,
    markdown,
    number,
    show,
)
from analysis.select import sweep_selection
from analysis.select.cell_runs import EDGE
from analysis.select.provenance import provenance_json, provenance_line
from analysis.select.sweep_selection import ZERO_SHOT, Selection
from analysis.stats.intervals import accuracy, mcnemar_exact, wilson_interval

CAPTION = (
    "lr: the one of best validation accuracy, of equal ones the smaller. Test accuracy: at the step of "
    "best validation accuracy, with its 95 % Wilson interval. Gain and p: against zero-shot on the "
    "same test examples, two-sided exact McNemar test, not corrected for the number of methods. "
    "Time per step: median. Passes: forward passes of training, without evaluation."
)
Run = sweep_selection.Cell


@dataclass(frozen=True)
class Result:
    """What a chosen run says beyond its own log: chance, and the comparison with zero-shot.

    Accuracies are fractions; `gain` is in percentage points; None without a zero-shot run.
    """

    low: float
    high: float
    gain: float | None
    p_value: float | None


def write_tables(selection: Selection, directory: Path) -> list[Path]:
    """Write all tables, their provenance and the figure; print the tables; return the paths.

    Raises:
        LogError: a run contradicts itself; then nothing has been written.
    """
    results = compare(selection)
    frame, grid = method_frame(selection, results), grid_frame(selection)
    shown, shown_grid = method_table(selection, frame), grid_table(selection, grid)
    texts = {
        "table.csv": frame.to_csv(index=False, lineterminator="\n"),
        "table.md": markdown(shown),
        "table.tex": latex(shown),
        "grid.csv": grid.to_csv(index=False, lineterminator="\n"),
        "grid.md": markdown(shown_grid),
        "provenance.json": provenance_json(selection),
    }
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8", newline="\n")
    paths = [directory / name for name in texts] + write(overview(selection), directory)
    terminal = console(100)
    show(shown_grid, terminal)
    show(shown, terminal)
    return paths


def compare(selection: Selection) -> dict[str, Result]:
    """What each method's chosen run says against chance and zero-shot.

    Raises:
        LogError: a run contradicts itself.
    """
    return {method: _result(cell, selection) for method, cell in selection.chosen.items()}


def _result(cell: Run, selection: Selection) -> Result:
    """Interval and comparison of a finished run, whose predictions must have its accuracy."""
    predictions, labels = _required(cell.predictions), _required(cell.labels)
    n, test_accuracy = _required(cell.test_n), _required(cell.test_accuracy)
    if len(labels) != n or len(predictions) != n:
        raise LogError(
            f"run {cell.run_id} logs {len(predictions)} test predictions and {len(labels)} labels "
            f"for {n} examples"
        )
    counted = accuracy(predictions, labels)
    if abs(counted - test_accuracy) > 1e-6:
        raise LogError(
            f"run {cell.run_id} logs a test accuracy of {test_accuracy:.6f}, "
            f"but its predictions have {counted:.6f}"
        )
    low, high = wilson_interval(round(counted * n), n)
    zero_shot = selection.chosen.get(ZERO_SHOT)
    if zero_shot is None or cell is zero_shot:
        return Result(low, high, None, None)
    gain = round(100 * (test_accuracy - _required(zero_shot.test_accuracy)), 10)
    p_value = mcnemar_exact(predictions, _required(zero_shot.predictions), labels)
    return Result(low, high, gain, p_value)


def _required(value: Any) -> Any:
    """What `select` has made sure that every finished run logs."""
    assert value is not None
    return value


def method_frame(selection: Selection, results: dict[str, Result]) -> pd.DataFrame:
    """The main table in numbers: one row per method, empty where there is no finished run."""
    rows: list[dict[str, Any]] = []
    for method in selection.methods:
        cell, result = selection.chosen.get(method), results.get(method)
        row: dict[str, Any] = {"method": method, "status": _status(method, selection)}
        if cell and result:
            row |= {
                "lr": None if method in UNTRAINED else cell.lr,
                "best_step": cell.best_step,
                "val_accuracy": cell.val_accuracy,
                "val_n": cell.val_n,
                "test_accuracy": cell.test_accuracy,
                "test_n": cell.test_n,
                "test_low": result.low,
                "test_high": result.high,
                "gain_points": result.gain,
                "p_mcnemar": result.p_value,
                "step_ms": cell.step_ms,
                "forwards_per_step": cell.forwards_per_step,
                "forwards_to_best": cell.forwards_to_best,
                "run_id": cell.run_id,
            }
        rows.append(row)
    return pd.DataFrame(rows).convert_dtypes()  # whole numbers stay whole where there are gaps


def grid_frame(selection: Selection) -> pd.DataFrame:
    """Every run in numbers: one row per method and learning rate."""
    chosen = {cell.run_id for cell in selection.chosen.values()}
    rows = [
        {
            "method": cell.method,
            "lr": None if cell.method in UNTRAINED else cell.lr,
            "status": cell.status,
            "chosen": cell.run_id in chosen,
            "best_step": cell.best_step,
            "val_accuracy": cell.val_accuracy,
            "test_accuracy": cell.test_accuracy,
            "last_step": cell.last_step,
            "collapse_step": cell.collapse_step,
            "run_id": cell.run_id,
        }
        for cell in selection.cells
    ]
    return pd.DataFrame(rows).convert_dtypes()


def method_table(selection: Selection, frame: pd.DataFrame) -> Table:
    """The frame of `method_frame` as a table."""
    some = next(iter(selection.chosen.values()), None)
    val_n, test_n = (f", n={some.val_n}", f", n={some.test_n}") if some else ("", "")
    heads = [
        "method",
        "lr",
        "best step",
        f"val. %{val_n}",
        f"test %{test_n}",
        "95 % interval",
        "gain, points",
        "p",
    ]
    heads += ["ms per step", "passes per step", "passes to best"]
    rows: list[Sequence[Cell | str]] = [
        [
            method_label(row["method"]),
            *(_numbers(row, selection) if row["status"] == "finished" else _none(row, selection)),
        ]
        for row in frame.to_dict("records")
    ]
    return Table(
        f"{selection.name}: every method at its best learning rate",
        heads,
        rows,
        caption=_caption(selection),
    )


def _numbers(row: dict[Any, Any], selection: Selection) -> list[Cell]:
    """The cells of a finished method's row behind its name."""
    method, zero = row["method"], row["method"] in UNTRAINED
    mine = [cell for cell in selection.cells if cell.method == method]
    left_out = [
        f"{_lr(other.lr)} ({_stopped(other)})" for other in mine if other.status == "unfinished"
    ]
    lr_notes: tuple[str, ...] = ()
    if left_out:
        has = "has" if len(left_out) == 1 else "have"
        lr_notes += (
            f"chosen without lr {', '.join(left_out)}, which {has} not finished; "
            f"`{selection.command}` completes the grid",
        )
    rates = sorted(cell.lr for cell in mine if cell.lr is not None)
    if len(rates) > 1 and row["lr"] in (rates[0], rates[-1]):
        lr_notes += (EDGE,)
    gain_notes: tuple[str, ...] = ()
    if pd.isna(row["gain_points"]) and not zero:
        gain_notes = (f"there is no finished zero-shot run; `{selection.command}` makes it",)
    passes: tuple[str, ...] = ()
    if pd.isna(row["forwards_to_best"]) and not zero:
        passes = (f"the history of run {row['run_id']} lacks its best step",)
    ends = [number(row[key], ".1f", 100).text for key in ("test_low", "test_high")]
    return [
        Cell(ABSENT) if zero else number(row["lr"], "g", notes=lr_notes),
        Cell(ABSENT) if zero else number(row["best_step"], ",.0f"),
        number(row["val_accuracy"], ".1f", 100),
        number(row["test_accuracy"], ".1f", 100, runs=row["run_id"]),
        Cell("–".join(ends)),
        number(row["gain_points"], "+.1f", notes=gain_notes),
        number(row["p_mcnemar"], ".2g", notes=gain_notes),
        Cell(ABSENT) if zero else number(row["step_ms"], ".1f"),
        Cell(ABSENT) if zero else number(row["forwards_per_step"], "g"),
        Cell(ABSENT) if zero else number(row["forwards_to_best"], ",.0f", notes=passes),
    ]


def _none(row: dict[Any, Any], selection: Selection) -> list[Cell]:
    """The cells of a method that has no finished run: marks, and a note that says why."""
    cells = [cell for cell in selection.cells if cell.method == row["method"]]
    label = method_label(row["method"])
    if row["status"] == "collapsed":
        where = ", ".join(f"lr {_lr(c.lr)} at step {c.collapse_step}" for c in cells)
        note, sign = f"every run of {label} collapsed (non-finite loss): {where}", COLLAPSED
    else:
        ids = ", ".join(cell.run_id for cell in cells if cell.status == "unfinished")
        note, sign = (
            f"no run of {label} has finished ({ids}); `{selection.command}` completes it",
            ABSENT,
        )
    return [*[Cell(sign)] * 3, Cell(sign, notes=(note,)), *[Cell(sign)] * 6]


def grid_table(selection: Selection, frame: pd.DataFrame) -> Table:
    """The frame of `grid_frame` as a table."""
    heads = ["method", "lr", "val. %", "test %", "best step", "status"]
    content = Table(f"{selection.name}: every learning rate tried", heads)
    content.caption = [
        "→ is the chosen learning rate, * a collapsed run, – one that has not finished."
    ]
    for row, cell in zip(frame.to_dict("records"), selection.cells, strict=True):
        zero = row["method"] in UNTRAINED
        status = {
            "finished": "finished",
            "collapsed": f"{COLLAPSED} collapsed at step {cell.collapse_step}",
            "unfinished": f"{ABSENT} {_stopped(cell)}",
        }[row["status"]]
        sign = {"collapsed": Cell(COLLAPSED), "unfinished": Cell(ABSENT)}.get(row["status"])
        content.rows.append(
            [
                method_label(row["method"]),
                Cell(ABSENT) if zero else number(row["lr"], "g"),
                sign or number(row["val_accuracy"], ".1f", 100),
                sign or number(row["test_accuracy"], ".1f", 100),
                Cell(ABSENT) if zero else sign or number(row["best_step"], ",.0f"),
                f"→ {status}" if row["chosen"] and not zero else status,
            ]
        )
    return content


def _stopped(cell: Run) -> str:
    """How far an unfinished run has come, by its log."""
    return (
        f"stopped at step {cell.last_step}" if cell.last_step else "stopped before its first step"
    )


def _caption(selection: Selection) -> list[str]:
    lines = [CAPTION, provenance_line(selection)]
    key = "provenance.device"
    if key in selection.runs and selection.runs[key].nunique() > 1:
        lines.append("The runs come from different devices: times per step do not compare.")
    if selection.unidentified:
        names = ", ".join(path.name for path in selection.unidentified)
        lines.append(f"Killed before W&B wrote which sweep they belong to: {names}.")
    return lines


def _status(method: str, selection: Selection) -> str:
    """`finished` if one run has; else unfinished if one may still; else collapsed."""
    found = {cell.status for cell in selection.cells if cell.method == method}
    return next(status for status in ("finished", "unfinished", "collapsed") if status in found)


def _lr(lr: float | None) -> str:
    return number(lr, "g").text
