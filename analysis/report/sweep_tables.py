"""The tables of a sweep: each method at its chosen learning rate, and every learning rate tried.

    python -m analysis.report.sweep_tables quickstart --runs out

writes table.{csv,md,tex}, grid.{csv,md}, the loss-curve figure and provenance.json to
results/quickstart/ and prints the tables. The csv files hold what the runs logged, unrounded, in the
units of docs/design.md; md and tex hold the page. `–` is a run that has not finished, `*` a collapsed one.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from analysis.logs.run_file import LogError
from analysis.report import command
from analysis.report.figures import write_figures
from analysis.report.style import look
from analysis.report.text_table import ABSENT, COLLAPSED, TextTable, latex, markdown, show
from analysis.select.provenance import provenance_json, provenance_line
from analysis.select.sweep_selection import ZERO_SHOT, Cell, Selection
from analysis.stats.intervals import accuracy, mcnemar_exact, wilson_interval

CAPTION = (
    "lr: the one of best validation accuracy, of equal ones the smaller. Test accuracy: at the step of "
    "best validation accuracy, with its 95 % Wilson interval. Gain and p: against zero-shot on the "
    "same test examples, two-sided exact McNemar test, not corrected for the number of methods. "
    "Time per step: median. Passes: forward passes of training, without evaluation."
)
PIPE_WIDTH = 100  # characters, where there is no terminal to ask


@dataclass(frozen=True)
class Result:
    """What a chosen run says beyond its own log: chance, and the comparison with zero-shot.

    Accuracies are fractions; `gain` is in percentage points; None without a zero-shot run.
    """

    low: float
    high: float
    gain: float | None
    p_value: float | None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see the module."""
    return command.run(
        "analysis.report.sweep_tables",
        "Tables and figures of a sweep, from its W&B run files.",
        write_tables,
        argv,
    )


def write_tables(selection: Selection, directory: Path) -> list[Path]:
    """Write all tables, their provenance and the figure; print the tables; return the paths.

    Raises:
        LogError: a run contradicts itself; then nothing has been written.
    """
    results = compare(selection)
    table, grid = method_table(selection, results), grid_table(selection)
    texts = {
        "table.csv": method_frame(selection, results).to_csv(index=False, lineterminator="\n"),
        "table.md": markdown(table),
        "table.tex": latex(table),
        "grid.csv": grid_frame(selection).to_csv(index=False, lineterminator="\n"),
        "grid.md": markdown(grid),
        "provenance.json": provenance_json(selection),
    }
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8", newline="\n")
    paths = [directory / name for name in texts] + write_figures(selection, directory)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    show(grid, console)
    show(table, console)
    return paths


def compare(selection: Selection) -> dict[str, Result]:
    """What each method's chosen run says against chance and zero-shot.

    Raises:
        LogError: a run contradicts itself.
    """
    return {method: _result(cell, selection) for method, cell in selection.chosen.items()}


def _result(cell: Cell, selection: Selection) -> Result:
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
                "lr": None if method == ZERO_SHOT else cell.lr,
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
    return _tidy(rows)


def grid_frame(selection: Selection) -> pd.DataFrame:
    """Every run in numbers: one row per method and learning rate."""
    chosen = {cell.run_id for cell in selection.chosen.values()}
    return _tidy(
        [
            {
                "method": cell.method,
                "lr": None if cell.method == ZERO_SHOT else cell.lr,
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
    )


def method_table(selection: Selection, results: dict[str, Result]) -> TextTable:
    """The main table as a page shows it."""
    some = next(iter(selection.chosen.values()), None)
    val_n = f", n={some.val_n}" if some else ""
    test_n = f", n={some.test_n}" if some else ""
    table = TextTable(
        title=f"{selection.name}: every method at its best learning rate",
        columns=[
            *("method", "lr", "best step", f"val. %{val_n}", f"test %{test_n}"),
            *("95 % interval", "gain, points", "p", "ms per step"),
            *("passes per step", "passes to best"),
        ],
        caption=_caption(selection),
    )
    for method in selection.methods:
        cell, result = selection.chosen.get(method), results.get(method)
        if cell and result:
            figures = _figures(cell, result, selection, table)
        else:
            figures = _no_figures(method, selection, table)
        table.rows.append([look(method).label, *figures])
    return table


def _figures(cell: Cell, result: Result, selection: Selection, table: TextTable) -> list[str]:
    """The cells of a method's row behind its name."""
    is_zero_shot = cell.method == ZERO_SHOT
    left_out = [
        f"{_lr(other.lr)} ({_stopped(other)})"
        for other in selection.cells
        if other.method == cell.method and other.status == "unfinished"
    ]
    lr_mark = gain_mark = forwards_mark = ""
    if left_out:
        lr_mark = table.note(
            f"chosen without lr {', '.join(left_out)}, which {'has' if len(left_out) == 1 else 'have'} "
            f"not finished; `{selection.command}` completes the grid"
        )
    if result.gain is None and not is_zero_shot:
        gain_mark = table.note(
            f"there is no finished zero-shot run; `{selection.command}` makes it"
        )
    if cell.forwards_to_best is None and not is_zero_shot:
        forwards_mark = table.note(f"the history of run {cell.run_id} lacks its best step")
    forwards = _number(cell.forwards_to_best, ",d") + forwards_mark
    return [
        ABSENT if is_zero_shot else _lr(cell.lr) + lr_mark,
        ABSENT if is_zero_shot else _number(cell.best_step, ",d"),
        _percent(cell.val_accuracy),
        _percent(cell.test_accuracy),
        f"{_percent(result.low)}–{_percent(result.high)}",
        _number(result.gain, "+.1f") + gain_mark,
        _number(result.p_value, ".2g") + gain_mark,
        ABSENT if is_zero_shot else _number(cell.step_ms, ".1f"),
        ABSENT if is_zero_shot else _number(cell.forwards_per_step, "g"),
        ABSENT if is_zero_shot else forwards,
    ]


def _no_figures(method: str, selection: Selection, table: TextTable) -> list[str]:
    """The cells of a method that has no finished run: marks, and a note that says why."""
    cells = [cell for cell in selection.cells if cell.method == method]
    collapsed = _status(method, selection) == "collapsed"
    if collapsed:
        where = ", ".join(f"lr {_lr(c.lr)} at step {c.collapse_step}" for c in cells)
        text = f"every run of {look(method).label} collapsed (non-finite loss): {where}"
    else:
        ids = ", ".join(cell.run_id for cell in cells if cell.status == "unfinished")
        text = f"no run of {look(method).label} has finished ({ids}); `{selection.command}` completes it"
    sign = COLLAPSED if collapsed else ABSENT
    return [sign] * 3 + [sign + table.note(text)] + [sign] * 6


def grid_table(selection: Selection) -> TextTable:
    """Every run as a page shows it."""
    chosen = {cell.run_id for cell in selection.chosen.values()}
    table = TextTable(
        title=f"{selection.name}: every learning rate tried",
        columns=["method", "lr", "val. %", "test %", "best step", "status"],
        caption=["→ is the chosen learning rate, * a collapsed run, – one that has not finished."],
    )
    for cell in selection.cells:
        status = {
            "finished": "finished",
            "collapsed": f"{COLLAPSED} collapsed at step {cell.collapse_step}",
            "unfinished": f"{ABSENT} {_stopped(cell)}",
        }[cell.status]
        sign = {"collapsed": COLLAPSED, "unfinished": ABSENT}.get(cell.status)
        table.rows.append(
            [
                look(cell.method).label,
                ABSENT if cell.method == ZERO_SHOT else _lr(cell.lr),
                sign or _percent(cell.val_accuracy),
                sign or _percent(cell.test_accuracy),
                ABSENT if cell.method == ZERO_SHOT else sign or _number(cell.best_step, ",d"),
                f"→ {status}" if cell.run_id in chosen and cell.method != ZERO_SHOT else status,
            ]
        )
    return table


def _stopped(cell: Cell) -> str:
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


def _tidy(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A frame whose whole numbers stay whole where there are gaps."""
    return pd.DataFrame(rows).convert_dtypes()


def _lr(lr: float | None) -> str:
    return _number(lr, "g")


def _percent(fraction: float | None) -> str:
    return ABSENT if fraction is None else f"{100 * fraction:.1f}"


def _number(value: float | None, form: str) -> str:
    return ABSENT if value is None else format(value, form).replace("-", "−")


if __name__ == "__main__":
    sys.exit(main())
