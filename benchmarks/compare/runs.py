"""Makes the runs of the comparison and reads what they found."""

from __future__ import annotations

import contextlib
import io
import math
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import pandas as pd

from benchmarks.compare.protocol import (
    COMMON,
    ENTRIES,
    FIRST_EXPONENT,
    PARTS,
    Cell,
    Entry,
    Losses,
    wanted,
)
from zo.config import RunConfig, command_line
from zo.run.directory import directory_of
from zo.run.rows import read_rows
from zo.run.tracking import read_status

Found: TypeAlias = dict[str, Any]

BY_NAME = {entry.name: entry for entry in ENTRIES}


@cache
def base_of(part: str, name: str, out: str) -> RunConfig:
    """Returns the checked configuration of an entry at the middle of the model's grid."""
    words = [*COMMON, *PARTS[part], *BY_NAME[name].overrides, f"out={out}"]
    (run,) = command_line.runs(words)
    return run


def config_of(cell: Cell, out: str) -> RunConfig:
    """Returns a cell's checked configuration."""
    return replace(base_of(cell.part, cell.entry, out), seed=cell.seed, lr=cell.lr)


def make(cell: Cell, out: str) -> None:
    """Makes a cell's run, or nothing if it has ended; what it prints is dropped.

    Raises:
        LockedError: If another process makes it.
    """
    from zo.run import runner

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        runner.run(config_of(cell, out))


def outcome(cell: Cell, out: str) -> Found | None:
    """Returns what a run found, None unless it has ended.

    The loss is that of the validation examples after the whole budget, infinite if the run collapsed; `curve` has
    (forward passes, loss, validation accuracy) of every evaluation, `test` the accuracy and `right` the single answers
    at the best validation accuracy.
    """
    run = config_of(cell, out)
    directory = directory_of(run)
    status = read_status(directory)
    if status.get("run/status") not in ("finished", "collapsed"):
        return None
    rows = pd.DataFrame(read_rows(directory))
    evaluated = rows.dropna(subset="eval/val_loss") if "eval/val_loss" in rows else rows[:0]
    passes = run.optimizer.passes_per_step
    collapsed = status["run/status"] == "collapsed"
    return {
        **cell._asdict(),
        "lr": cell.lr,
        "loss": math.inf if collapsed else float(evaluated["eval/val_loss"].iloc[-1]),
        "test": float(status.get("best/test_accuracy", math.nan)),
        "steps": run.steps,
        "passes": passes,
        "step_s": float(rows["time/cpu_s"].median()) if "time/cpu_s" in rows else math.nan,
        "state_mib": float(status.get("mem/state_mib", 0.0)),
        "peak_gib": float(status.get("mem/peak_gib", math.nan)),
        "curve": [
            (int(row["step"]) * passes, row["eval/val_loss"], row["eval/val_accuracy"])
            for _, row in evaluated.iterrows()
        ],
    }


def standing(
    part: str, entry: Entry, out: str, known: dict[Cell, Found]
) -> tuple[Losses, list[Cell]]:
    """Returns the losses of an entry's runs that have ended, and its next runs; empty if the entry is complete.

    Args:
        part: Of PARTS.
        entry: Of ENTRIES.
        out: Directory of the runs.
        known: What ended runs found; those that are new are added.
    """
    first = FIRST_EXPONENT[entry.method]
    start = [first, first + 1, first + 2]
    losses: dict[int, dict[int, float]] = {}
    while True:
        cells = [Cell(part, entry.name, e, seed) for e, seed in wanted(start, losses)]
        for cell in cells:
            if cell not in known and (found := outcome(cell, out)) is not None:
                known[cell] = found
        ended = [cell for cell in cells if cell in known]
        if not ended:
            return losses, cells
        for cell in ended:
            losses.setdefault(cell.exponent, {})[cell.seed] = known[cell]["loss"]
