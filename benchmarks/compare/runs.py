"""Makes the runs of the comparison and reads what they found."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from benchmarks.compare.protocol import (
    BEFORE,
    BY_NAME,
    PARTS,
    Cell,
    Entry,
    Losses,
    start_of,
    wanted,
)
from zo.config import RunConfig, command_line
from zo.config.identity import run_id
from zo.run.directory import directory_of
from zo.run.rows import read_rows
from zo.run.tracking import read_status

Found: TypeAlias = dict[str, Any]
SIGNALS = ["optim/noise_std", "optim/shrinkage"]
"""BSZO's; medians of the second half of a run are kept."""


@cache
def base_of(part: str, name: str, out: str) -> RunConfig:
    """Returns the checked configuration of an entry, at its own rate or the middle of the model's grid."""
    typed = [*PARTS[part].words, *BY_NAME[name].overrides, f"out={out}"]
    last = {word.partition("=")[0]: word for word in typed}
    return command_line.runs(list(last.values()))[0]


def config_of(cell: Cell, out: str) -> RunConfig:
    """Returns a cell's checked configuration."""
    return replace(base_of(cell.part, cell.entry, out), seed=cell.seed, lr=cell.lr)


def make(run: RunConfig) -> None:
    """Makes a run, or nothing if it has ended; what it prints is dropped.

    Raises:
        LockedError: If another process makes it.
    """
    from zo.run import runner

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        runner.run(run)


def outcome(cell: Cell, out: str) -> Found | None:
    """Returns what a run found, None unless it has ended.

    `loss` is the validation loss after the whole budget, infinite if the run collapsed; `curve` has (forward passes,
    loss) of every evaluation; `test` is the accuracy at the best validation accuracy.
    """
    run = config_of(cell, out)
    status = read_status(directory_of(run))
    if status.get("run/status") not in ("finished", "collapsed"):
        return None
    columns = ["step", "eval/val_loss", "time/cpu_s", *SIGNALS]
    rows = pd.DataFrame(read_rows(directory_of(run))).reindex(columns=columns)
    passes, evaluated = run.optimizer.passes_per_step, rows[columns[:2]].dropna()
    curve = [(int(step) * passes, loss) for step, loss in evaluated.to_numpy()]
    late = rows[len(rows) // 2 :]
    collapsed = status["run/status"] == "collapsed"
    return {
        **cell._asdict(),
        "run": run_id(run),
        "lr": cell.lr,
        "loss": math.inf if collapsed else float(curve[-1][1]),
        "test": float(status.get("best/test_accuracy", math.nan)),
        "steps": run.steps,
        "passes": passes,
        "step_s": float(rows["time/cpu_s"].median()),
        "state_mib": float(status.get("mem/state_mib", 0.0)),
        "peak_gib": float(status.get("mem/peak_gib", math.nan)),
        **{at.partition("/")[2]: float(late[at].median()) for at in SIGNALS},
        "revision": _revision(directory_of(run)),
        "curve": curve,
    }


def _revision(directory: Path) -> str:
    """Returns the commits that made a run, shortened."""
    attempts = pd.read_json(directory / "attempts.jsonl", lines=True)
    return " ".join(attempts["git_revision"].astype(str).str[:12].unique())


def to_frame(runs: Iterable[Found]) -> pd.DataFrame:
    """Returns what runs found, a row for each; `losses` has the curve as text."""
    frame = pd.DataFrame(list(runs))
    frame["losses"] = [" ".join(f"{n}:{loss:.6g}" for n, loss in of) for of in frame.pop("curve")]
    return frame.sort_values(["entry", "lr", "seed"])


def from_csv(path: Path, out: str) -> dict[Cell, Found]:
    """Returns what `to_frame` wrote, without runs that today's protocol makes otherwise: their ids differ."""
    frame = pd.read_csv(path)
    curves = [[point.split(":") for point in text.split()] for text in frame.pop("losses")]
    known = {}
    for found, curve in zip(frame.to_dict("records"), curves, strict=True):
        row = {str(name): value for name, value in found.items()}
        cell = Cell(row["part"], row["entry"], row["exponent"], row["seed"])
        there = cell.part in PARTS and cell.entry in BY_NAME
        if there and row["run"] == run_id(config_of(cell, out)):
            known[cell] = {**row, "curve": [(int(n), float(loss)) for n, loss in curve]}
    return known


def before(part: str) -> Cell:
    """Returns the run that only evaluates a part's model."""
    return Cell(part, BEFORE.name, 0, 0)


def zero_shot(part: str, known: Mapping[Cell, Found]) -> str:
    """Returns a sentence on the model before the first step, empty if it was not evaluated."""
    if not (found := known.get(before(part))):
        return ""
    right = f"test accuracy {100 * found['test']:.1f} %"
    return f"Before the first step: loss {found['loss']:.4f}, {right}."


def find(cell: Cell, out: str, known: dict[Cell, Found]) -> Found | None:
    """Returns what a run found, from `known` or its directory, None unless it has ended; adds it to `known`."""
    if cell not in known and (found := outcome(cell, out)) is not None:
        known[cell] = found
    return known.get(cell)


def standing(
    part: str, entry: Entry, out: str, known: dict[Cell, Found]
) -> tuple[Losses, list[Cell]]:
    """Returns the losses of an entry's runs that have ended, and its next runs; adds what they found to `known`."""
    losses: dict[int, dict[int, float]] = {}
    start = start_of(base_of(part, entry.name, out).lr)
    while True:
        pairs = wanted(PARTS[part], start, losses)
        cells = [Cell(part, entry.name, e, seed) for e, seed in pairs]
        ended = [cell for cell in cells if find(cell, out, known)]
        if not ended:
            return losses, cells
        for cell in ended:
            losses.setdefault(cell.exponent, {})[cell.seed] = known[cell]["loss"]
