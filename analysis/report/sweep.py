"""The tables of one sweep: each method at its chosen learning rate, and every learning rate tried.

Written to DIR/<sweep>/: table.{csv,md,tex}, grid.{csv,md}, the loss figure and provenance.json. The csv files hold what
the runs logged, unrounded, in the units of docs/design.md. `–` is a run that has not finished, `*` a collapsed one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.paper.names import UNTRAINED, ZERO_SHOT, method_label
from analysis.report.figures.drawing import write
from analysis.report.figures.overview import overview
from analysis.report.markdown import csv, write_texts
from analysis.report.table import (
    ABSENT,
    COLLAPSED,
    Cell,
    Row,
    Table,
    console,
    latex,
    markdown,
    number,
    show,
)
from analysis.select.answers import right_answers
from analysis.select.cell_runs import EDGE
from analysis.select.provenance import foot, runs_json
from analysis.select.trials import Trials
from analysis.stats.intervals import sign_test, wilson_interval

CAPTION = (
    "lr: the one of best validation accuracy, of equal ones the smaller. Test accuracy: at the step of "
    "best validation accuracy, with its 95 % Wilson interval. Gain and p: against zero-shot on the "
    "same test examples, two-sided exact McNemar test, not corrected for the number of methods. "
    "Time per step: median. Passes: forward passes of training, without evaluation."
)
NUMBERS = (
    *("lr", "best_step", "val_accuracy", "val_n", "test_accuracy", "test_n", "test_low"),
    *("test_high", "gain_points", "p_mcnemar", "step_ms", "forwards_per_step", "forwards_to_best"),
)
GRID = (
    *("method", "lr", "status", "chosen", "best_step", "val_accuracy", "test_accuracy"),
    *("last_step", "collapse_step", "run_id"),
)


def write_tables(trials: Trials, directory: Path, where: Sequence[str] = ()) -> list[Path]:
    """Write all tables, their provenance and the figure into a directory; print the tables; the paths."""
    frame, grid = method_frame(trials), grid_frame(trials)
    shown, shown_grid = method_table(trials, frame), grid_table(trials, grid)
    about = {"sweep": trials.sweep, "where": list(where)}
    logged = trials.runs.set_index("run_id")["lr"].reindex(grid["run_id"])
    rates = [None if pd.isna(lr) else float(lr) for lr in logged]  # as logged: zero-shot has none
    cells = grid[["run_id", "method", "lr", "status", "chosen"]].astype(object).assign(lr=None)
    cells["lr"] = pd.Series(rates, dtype=object)
    lost = [path.name for path in trials.frames.unidentified]
    texts = {
        "table.csv": csv(frame),
        "table.md": markdown(shown),
        "table.tex": latex(shown),
        "grid.csv": csv(grid),
        "grid.md": markdown(shown_grid),
        "provenance.json": runs_json(about, cells.to_dict("records"), trials.runs, lost),  # type: ignore[arg-type]
    }
    paths = write_texts(directory, texts)
    terminal = console(100)
    show(shown_grid, terminal)
    show(shown, terminal)
    return paths + write(overview(trials), directory)


def method_frame(trials: Trials) -> pd.DataFrame:
    """The main table in numbers: one row per method, empty where there is no finished run.

    Accuracies and the ends of the interval are fractions, the gain is in percentage points.
    """
    table = trials.table
    chosen = {row["method"]: row for row in table[table["chosen"]].to_dict("records")}
    right = {method: right_answers(row) > 0 for method, row in chosen.items()}
    rows: list[dict[str, Any]] = []
    for method in trials.methods:
        found = set(table.loc[table["method"] == method, "status"])
        order = ("finished", "unfinished", "duplicated", "collapsed")
        row: dict[str, Any] = {"method": method, "status": next(s for s in order if s in found)}
        if run := chosen.get(method):
            low, high = wilson_interval(int(right[method].sum()), len(right[method]))
            row |= {key: run.get(key) for key in NUMBERS} | {"test_low": low, "test_high": high}
            row["lr"] = None if method in UNTRAINED else run["lr"]
            if ZERO_SHOT in chosen and method != ZERO_SHOT:
                gain = run["test_accuracy"] - chosen[ZERO_SHOT]["test_accuracy"]
                row["gain_points"] = round(100 * gain, 10)
                mine, zero = right[method], right[ZERO_SHOT]
                row["p_mcnemar"] = sign_test(int((mine & ~zero).sum()), int((zero & ~mine).sum()))
            row["run_id"] = run["run_id"]
        rows.append(row)
    return pd.DataFrame(rows).convert_dtypes()  # whole numbers stay whole where there are gaps


def grid_frame(trials: Trials) -> pd.DataFrame:
    """Every run in numbers: one row per method and learning rate."""
    frame = trials.table.rename(columns={"made_steps": "last_step"})[list(GRID)]
    frame = frame.assign(lr=frame["lr"].where(~frame["method"].isin(UNTRAINED)))
    return frame.convert_dtypes()


def method_table(trials: Trials, frame: pd.DataFrame) -> Table:
    """The frame of `method_frame` as a table."""
    sizes = frame[["val_n", "test_n"]].dropna() if "val_n" in frame else frame.iloc[:0]
    val_n, test_n = (f", n={n}" for n in sizes.iloc[0]) if len(sizes) else ("", "")
    notes = _notes(trials, frame)

    def cell(key: str, form: str, factor: float = 1, trained: bool = True) -> Any:
        """A number with its notes; nothing for what belongs to training where there is none."""
        return lambda row: _cell(
            row, key, form, factor, trained, notes.get((row["method"], key), ())
        )

    def interval(row: Row) -> Cell:
        if row["status"] != "finished":
            return _cell(row, "", "")
        ends = (number(row[key], ".1f", 100).text for key in ("test_low", "test_high"))
        return Cell("–".join(ends))

    columns = {
        "method": lambda row: method_label(row["method"]),
        "lr": cell("lr", "g"),
        "best step": cell("best_step", ",.0f"),
        f"val. %{val_n}": cell("val_accuracy", ".1f", 100, trained=False),
        f"test %{test_n}": cell("test_accuracy", ".1f", 100, trained=False),
        "95 % interval": interval,
        "gain, points": cell("gain_points", "+.1f", trained=False),
        "p": cell("p_mcnemar", ".2g", trained=False),
        "ms per step": cell("step_ms", ".1f"),
        "passes per step": cell("forwards_per_step", "g"),
        "passes to best": cell("forwards_to_best", ",.0f"),
    }
    title = f"{trials.sweep}: every method at its best learning rate"
    return Table.of(title, frame.to_dict("records"), columns, caption=_caption(trials))


def _notes(trials: Trials, frame: pd.DataFrame) -> dict[tuple[str, str], tuple[str, ...]]:
    """Footnotes by method and column: what a number hides, or why there is none."""
    command = f"`python train.py sweep={trials.sweep}`"
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for row in frame.to_dict("records"):
        method, label = row["method"], method_label(row["method"])
        mine = trials.table[trials.table["method"] == method]
        open_ = mine[~mine["status"].isin(["finished", "collapsed"])].to_dict("records")
        if row["status"] == "collapsed":
            ends = zip(mine["lr"], mine["collapse_step"], strict=True)
            where = ", ".join(f"lr {_lr(lr)} at step {step:.0f}" for lr, step in ends)
            said = f"every run of {label} collapsed (non-finite loss): {where}"
            found[method, "test_accuracy"] = (said,)
        elif row["status"] != "finished":
            ids = ", ".join(run["run_id"] for run in open_)
            said = f"no run of {label} has finished ({ids}); {command} completes it"
            found[method, "test_accuracy"] = (said,)
        elif method not in UNTRAINED:
            left_out = ", ".join(f"{_lr(run['lr'])} ({_stopped(run)})" for run in open_)
            has = "has" if len(open_) == 1 else "have"
            said = f"chosen without lr {left_out}, which {has} not finished; {command} completes the grid"
            at_edge = bool(mine["at_edge"].any())
            found[method, "lr"] = (said,) * bool(open_) + (EDGE,) * at_edge
            if pd.isna(row.get("gain_points")):
                said = f"there is no finished zero-shot run; {command} makes it"
                found[method, "gain_points"] = found[method, "p_mcnemar"] = (said,)
            if pd.isna(row["forwards_to_best"]):
                said = f"the history of run {row['run_id']} lacks its best step"
                found[method, "forwards_to_best"] = (said,)
    return found


def grid_table(trials: Trials, frame: pd.DataFrame) -> Table:
    """The frame of `grid_frame` as a table."""

    def cell(key: str, form: str, factor: float = 1) -> Any:
        return lambda row: _cell(row, key, form, factor, key in ("lr", "best_step"))

    columns = {
        "method": lambda row: method_label(row["method"]),
        "lr": lambda row: number(row["lr"], "g"),
        "val. %": cell("val_accuracy", ".1f", 100),
        "test %": cell("test_accuracy", ".1f", 100),
        "best step": cell("best_step", ",.0f"),
        "status": _became,
    }
    said = "→ is the chosen learning rate, * a collapsed run, – one that has not finished."
    title = f"{trials.sweep}: every learning rate tried"
    return Table.of(title, frame.to_dict("records"), columns, caption=[said])


def _cell(
    row: Row,
    key: str,
    form: str,
    factor: float = 1,
    trained: bool = True,
    notes: tuple[str, ...] = (),
) -> Cell:
    """A number of a finished run, or the mark of why there is none; `trained`: whether it is one of training."""
    if row["status"] != "finished":
        return Cell(COLLAPSED if row["status"] == "collapsed" else ABSENT, notes=notes)
    if row["method"] in UNTRAINED and trained:
        return Cell(ABSENT)
    runs = row["run_id"] if key == "test_accuracy" else ""
    return number(row[key], form, factor, notes=notes, runs=runs)


def _became(row: Row) -> str:
    """What became of a run, in words."""
    if row["status"] == "finished":
        return "→ finished" if row["chosen"] and row["method"] not in UNTRAINED else "finished"
    if row["status"] == "collapsed":
        return f"{COLLAPSED} collapsed at step {row['collapse_step']}"
    return f"{ABSENT} {_stopped(row)}"


def _stopped(row: Row) -> str:
    """How far an unfinished run has come, by its log."""
    if row["status"] == "duplicated":
        return "ended twice with different results"
    step = row["last_step"] if "last_step" in row else row["made_steps"]
    there = bool(pd.notna(step) and step > 0)
    return f"stopped at step {step:.0f}" if there else "stopped before its first step"


def _caption(trials: Trials) -> list[str]:
    runs = trials.runs
    lines = [CAPTION, foot(f"{len(runs)} runs of the W&B group {trials.sweep}", runs)]
    if trials.table["device"].nunique() > 1:
        lines.append("The runs come from different devices: times per step do not compare.")
    if trials.frames.unidentified:
        names = ", ".join(path.name for path in trials.frames.unidentified)
        lines.append(f"Killed before W&B wrote which sweep they belong to: {names}.")
    return lines


def _lr(lr: Any) -> str:
    return number(np.nan if lr is None else lr, "g").text
