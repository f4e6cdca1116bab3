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
    return command_line.runs(words)[0]


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

    `loss` is the validation loss after the whole budget, infinite if the run collapsed; `curve` has (forward passes,
    loss, accuracy) of every evaluation; `test` is the accuracy at the best validation accuracy.
    """
    run = config_of(cell, out)
    status = read_status(directory_of(run))
    if status.get("run/status") not in ("finished", "collapsed"):
        return None
    columns = ["step", "eval/val_loss", "eval/val_accuracy", "time/cpu_s"]
    rows = pd.DataFrame(read_rows(directory_of(run))).reindex(columns=columns)
    passes, evaluated = run.optimizer.passes_per_step, rows[columns[:3]].dropna()
    curve = [(int(step) * passes, loss, right) for step, loss, right in evaluated.to_numpy()]
    collapsed = status["run/status"] == "collapsed"
    return {
        **cell._asdict(),
        "lr": cell.lr,
        "loss": math.inf if collapsed else float(curve[-1][1]),
        "test": float(status.get("best/test_accuracy", math.nan)),
        "steps": run.steps,
        "passes": passes,
        "step_s": float(rows["time/cpu_s"].median()),
        "state_mib": float(status.get("mem/state_mib", 0.0)),
        "peak_gib": float(status.get("mem/peak_gib", math.nan)),
        "curve": curve,
    }


def standing(
    part: str, entry: Entry, out: str, known: dict[Cell, Found]
) -> tuple[Losses, list[Cell]]:
    """Returns the losses of an entry's runs that have ended, and its next runs; adds what they found to `known`."""
    first = FIRST_EXPONENT[entry.method]
    losses: dict[int, dict[int, float]] = {}
    while True:
        cells = [
            Cell(part, entry.name, e, seed) for e, seed in wanted(range(first, first + 3), losses)
        ]
        for cell in cells:
            if cell not in known and (found := outcome(cell, out)) is not None:
                known[cell] = found
        ended = [cell for cell in cells if cell in known]
        if not ended:
            return losses, cells
        for cell in ended:
            losses.setdefault(cell.exponent, {})[cell.seed] = known[cell]["loss"]
