"""The configurations of the comparison's runs, and what these found."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from benchmarks.compare.protocol import (
    BEFORE,
    COMMON,
    PARTS,
    Cell,
    Losses,
    overrides_of,
    start_of,
    wanted,
)
from zo.config import RunConfig, command_line
from zo.config.identity import run_id
from zo.run.directory import directory_of
from zo.run.rows import read_rows
from zo.run.tracking import read_status

Found: TypeAlias = dict[str, Any]
"""A row of the csv."""

SIGNALS = ["optim/noise_std", "optim/shrinkage"]
"""BSZO's; medians of the second half of a run are kept."""


@cache
def base_of(part: str, name: str, out: str) -> RunConfig:
    """Returns the checked configuration of an entry, at its own rate or the middle of the model's grid."""
    budget = PARTS[part].budget
    typed = [*COMMON, f"steps={budget}", f"eval_every={budget // 4}", *PARTS[part].overrides]
    last = {word.partition("=")[0]: word for word in (*typed, *overrides_of(name))}
    return command_line.runs([*last.values(), f"out={out}"])[0]


def config_of(cell: Cell, out: str) -> RunConfig:
    """Returns a cell's checked configuration."""
    return replace(base_of(cell.part, cell.entry, out), seed=cell.seed, lr=cell.lr)


def outcome(cell: Cell, out: str) -> Found | None:
    """Returns what a run found, None unless it has ended.

    `loss` is the validation loss after the whole budget, infinite if the run collapsed; `losses` has forward
    passes:loss of every evaluation; `test` is the accuracy at the best validation accuracy.
    """
    run = config_of(cell, out)
    directory = directory_of(run)
    status = read_status(directory)
    if status.get("run/status") not in ("finished", "collapsed"):
        return None
    columns = ["step", "eval/val_loss", "time/cpu_s", *SIGNALS]
    rows = pd.DataFrame(read_rows(directory)).reindex(columns=columns)
    passes, evaluated = run.optimizer.passes_per_step, rows[columns[:2]].dropna()
    collapsed = status["run/status"] == "collapsed"
    attempts = pd.read_json(directory / "attempts.jsonl", lines=True)
    return {
        **cell._asdict(),
        "run": run_id(run),
        "lr": cell.lr,
        "loss": math.inf if collapsed else float(evaluated["eval/val_loss"].iloc[-1]),
        "test": float(status.get("best/test_accuracy", math.nan)),
        "steps": run.steps,
        "passes": passes,
        "step_s": float(rows["time/cpu_s"].median()),
        "state_mib": float(status.get("mem/state_mib", 0.0)),
        "peak_gib": float(status.get("mem/peak_gib", math.nan)),
        **{at.partition("/")[2]: float(rows[at][len(rows) // 2 :].median()) for at in SIGNALS},
        "revision": " ".join(attempts["git_revision"].astype(str).str[:12].unique()),
        "losses": " ".join(
            f"{int(step) * passes}:{loss:.6g}" for step, loss in evaluated.to_numpy()
        ),
    }


def from_csv(path: Path, out: str) -> dict[Cell, Found]:
    """Returns the runs of a csv, without those that today's protocol makes otherwise: their ids differ."""
    known = {}
    for found in pd.read_csv(path).fillna({"losses": ""}).to_dict("records"):
        cell = Cell(found["part"], found["entry"], found["exponent"], found["seed"])
        names = (*PARTS[cell.part].names, BEFORE) if cell.part in PARTS else ()
        if cell.entry in names and found["run"] == run_id(config_of(cell, out)):
            known[cell] = {str(name): value for name, value in found.items()}
    return known


def to_csv(runs: Iterable[Found], path: Path) -> None:
    """Writes a row for each run."""
    frame = pd.DataFrame(list(runs)).sort_values(["entry", "lr", "seed"])
    frame.to_csv(path, index=False, float_format="%.6g")


def find(cell: Cell, out: str, known: dict[Cell, Found]) -> Found | None:
    """Returns what a run found, from `known` or its directory, None unless it has ended; adds it to `known`."""
    if cell not in known and (found := outcome(cell, out)) is not None:
        known[cell] = found
    return known.get(cell)


def standing(part: str, name: str, out: str, known: dict[Cell, Found]) -> tuple[Losses, list[Cell]]:
    """Returns the losses of an entry's runs that have ended, and its next runs; adds what they found to `known`."""
    losses: dict[int, dict[int, float]] = {}
    rate = base_of(part, name, out).lr
    assert rate is not None  # of a checked run
    start = start_of(rate)
    while True:
        cells = [Cell(part, name, *pair) for pair in wanted(PARTS[part], start, losses)]
        ended = [cell for cell in cells if find(cell, out, known)]
        if not ended:
            return losses, cells
        for cell in ended:
            losses.setdefault(cell.exponent, {})[cell.seed] = known[cell]["loss"]
