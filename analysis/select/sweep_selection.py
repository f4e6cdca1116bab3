"""Which runs a table or figure is made of: one sweep's cells, checked, and each method's chosen one.

A cell is one method at one learning rate. The learning rate is chosen per method by the best
validation accuracy among its finished runs, of equal ones the smaller; test accuracy plays no part.
A collapsed run (non-finite loss) is never chosen.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.logs.frames import FILE_COLUMNS, Frames
from analysis.logs.history import History
from analysis.logs.run_file import LogError
from analysis.paper.names import UNTRAINED
from analysis.select.cell_runs import chosen_lr

ZERO_SHOT = "zero_shot"
NOTHING = "nothing"  # what a run logs that does not log a key
# What decides no number, or is decided by the method and lr: may differ between runs of a method.
FREE = (
    *("lr", "lr_index", "model.lr_grid", "model.install", "task.install", "eval_tokens"),
    *("provenance", "sweep", "out", "resume", "device", "tracking", "cells"),
)
SHARED = ("model", "task", "precision", "seed")  # must agree between methods
SAME_EXAMPLES = ("best/val_n", "best/test_n", "test/labels")  # of all finished runs


class NoRuns(LogError):
    """There is no run of the sweep at all."""


@dataclass(frozen=True)
class Cell:
    """One run as the tables see it; None is what the run did not log.

    Accuracies are fractions, times milliseconds, `forwards` forward passes of training alone.
    """

    method: str
    lr: float | None
    run_id: str
    status: str
    torn: bool
    last_step: int | None
    collapse_step: int | None
    best_step: int | None
    val_accuracy: float | None
    val_n: int | None
    test_accuracy: float | None
    test_n: int | None
    predictions: str | None
    labels: str | None
    step_ms: float | None
    forwards_per_step: float | None
    forwards_to_best: int | None


@dataclass(frozen=True)
class Selection:
    """The cells of one sweep, zero-shot first, then by forward passes per step, name and lr.

    Attributes:
        name: the sweep.
        where: the conditions that all runs meet.
        cells: all of them.
        chosen: method -> its cell; without the methods that have no finished run.
        runs: the rows of the runs frame behind the cells.
        history: of these runs, and of any others.
        unidentified: run files of which nobody knows the sweep, see `Frames`.
    """

    name: str
    where: tuple[str, ...]
    cells: list[Cell]
    chosen: dict[str, Cell]
    runs: pd.DataFrame
    history: History
    unidentified: tuple[Path, ...]

    @property
    def methods(self) -> list[str]:
        """The methods in the order of the cells."""
        return list(dict.fromkeys(cell.method for cell in self.cells))

    def at_edge(self, method: str) -> bool:
        """Whether a method's chosen learning rate is the smallest or the largest of those that ended."""
        ended = [c.lr or 0.0 for c in self.cells if c.method == method and c.status != "unfinished"]
        chosen = self.chosen.get(method)
        return chosen is not None and len(ended) > 1 and chosen.lr in (min(ended), max(ended))

    @property
    def command(self) -> str:
        """What makes, or completes, these runs."""
        return f"python train.py sweep={self.name}"


def select(
    frames: Frames, sweep: str, directories: Sequence[Path], where: Sequence[str] = ()
) -> Selection:
    """The cells of the sweep.

    Args:
        frames: all runs.
        sweep: W&B group.
        directories: where the frames were read, for the message.
        where: `key=value` conditions on the configuration, all of which a run must meet.

    Raises:
        LogError: no such runs, or runs that cannot stand in one table; the message says which.
    """
    runs = frames.runs[frames.runs["group"] == sweep]
    for condition in where:
        runs = runs if runs.empty else _meeting(condition, runs)
    if runs.empty:
        conditions = "".join(f" with {condition}" for condition in where)
        places = ", ".join(map(str, directories))
        raise NoRuns(
            f"no run of sweep {sweep}{conditions} among the {len(frames.runs)} W&B runs below "
            f"{places}: make them with `python train.py sweep={sweep}`"
        )
    _check_comparable(runs)
    cells = _ordered([_cell(row) for row in runs.to_dict("records")])
    return Selection(
        *(sweep, tuple(where), cells, _choose(cells), runs, frames.history, frames.unidentified)
    )


def _meeting(condition: str, runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of which a configuration key has a value; numbers compare as numbers."""
    key, separator, text = condition.partition("=")
    if not separator or key not in runs.columns:
        raise LogError(f"--where {condition}: wanted is key=value, with a configuration key")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return runs[[bool(cell == value) or str(cell) == text for cell in runs[key]]]


def _below(key: str, names: Iterable[str]) -> bool:
    """Whether a dotted key is one of the names or lies below one."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _check_comparable(runs: pd.DataFrame) -> None:
    """Refuse runs that differ in what a table does not show.

    Raises:
        LogError: the first difference found, with its key and values.
    """
    nameless = runs[runs.reindex(columns=["optimizer.name"])["optimizer.name"].isna()]
    if len(nameless):
        raise LogError(f"run {nameless['run_id'].iloc[0]} does not log its optimizer.name")
    configuration = [
        key
        for key in runs.columns
        if "/" not in key and key not in FILE_COLUMNS and not _below(key, FREE)
    ]
    shared = [key for key in configuration if _below(key, SHARED)]
    for method, of_method in runs.groupby("optimizer.name"):
        _check_equal(of_method, configuration, f"the runs of {method}")
        twice = of_method[of_method["lr"].duplicated(keep=False)]
        if len(twice):
            ids = " and ".join(twice["run_id"])
            raise LogError(
                f"runs {ids} are the same cell, {method} at lr {twice['lr'].iloc[0]:g}, twice"
            )
    _check_equal(runs, shared, "the runs of the sweep")
    finished = runs[runs["status"] == "finished"]
    _check_equal(finished, [key for key in SAME_EXAMPLES if key in runs], "the finished runs")


def _check_equal(runs: pd.DataFrame, keys: Iterable[str], whose: str) -> None:
    for key in keys:
        values = sorted({_shown(value) for value in runs[key]})
        if len(values) > 1:
            choice = next(value for value in values if value != NOTHING)
            advice = "" if "/" in key else f"; choose one with --where {key}={choice}"
            short = ", ".join(v if len(v) <= 40 else f"{v[:36]}..." for v in values)
            raise LogError(f"{whose} differ in {key}: {short}{advice}")


def _shown(value: Any) -> str:
    """A value as the user typed it: a column with gaps has turned its integers into floats."""
    if pd.isna(value):
        return NOTHING
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _cell(row: dict[Any, Any]) -> Cell:
    """One row of `runs` as a cell.

    Raises:
        LogError: a finished run lacks what every finished run logs.
    """

    def number(key: str) -> float | None:
        value = row.get(key)
        return None if value is None or pd.isna(value) else float(value)

    def whole(key: str) -> int | None:
        value = number(key)
        return None if value is None else int(value)

    def text(key: str) -> str | None:
        value = row.get(key)
        return value if isinstance(value, str) else None

    if row["status"] == "finished":
        for key in ("best/step", "best/val_accuracy", "best/test_accuracy", *SAME_EXAMPLES):
            if row.get(key) is None or pd.isna(row[key]):
                raise LogError(f"run {row['run_id']} is finished but did not log {key}")
    return Cell(
        method=row["optimizer.name"],
        lr=number("lr"),
        run_id=row["run_id"],
        status=row["status"],
        torn=row["torn"],
        last_step=whole("last_step"),
        collapse_step=whole("run/collapse_step"),
        best_step=whole("best/step"),
        val_accuracy=number("best/val_accuracy"),
        val_n=whole("best/val_n"),
        test_accuracy=number("best/test_accuracy"),
        test_n=whole("best/test_n"),
        predictions=text("best/test_predictions"),
        labels=text("test/labels"),
        step_ms=number("time/step_ms_median"),
        forwards_per_step=number("run/forwards_per_step"),
        forwards_to_best=whole("forwards_to_best"),
    )


def _ordered(cells: list[Cell]) -> list[Cell]:
    known: dict[str, float] = {}  # a collapsed or unfinished run may not say how many it needs
    for cell in cells:
        if cell.forwards_per_step is not None:
            known[cell.method] = cell.forwards_per_step

    def place(method: str) -> int:
        return UNTRAINED.index(method) if method in UNTRAINED else len(UNTRAINED)

    return sorted(
        cells,
        key=lambda c: (place(c.method), known.get(c.method, 1e9), c.method, c.lr or 0.0),
    )


def _choose(cells: Iterable[Cell]) -> dict[str, Cell]:
    """Each method's finished cell of best validation accuracy, by the rule of `analysis.select.cell_runs`."""
    of_method: dict[str, dict[float, Cell]] = {}
    for cell in cells:
        of_method.setdefault(cell.method, {})[cell.lr or 0.0] = cell
    chosen = {}
    for method, by_lr in of_method.items():
        rows = [(lr, 0, cell.status, cell.val_accuracy) for lr, cell in by_lr.items()]
        lr = chosen_lr(pd.DataFrame(rows, columns=["lr", "seed", "status", "val_accuracy"]))
        if lr is not None:
            chosen[method] = by_lr[lr]
    return chosen
