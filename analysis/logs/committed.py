"""Kept measurements: the runs frame as a parquet file, and what the runs evaluated beside it.

runs.parquet           the runs frame
evaluations.parquet    a row per evaluation: run_id, step and what was logged
cells.parquet          the lines of their sweeps' manifests
"""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.logs import manifests
from analysis.logs.frames import Frames
from analysis.logs.history import History
from analysis.logs.run_file import LogError

EVALUATED, CELLS = "evaluations.parquet", "cells.parquet"
LOSS = "eval/val_loss"


def read(path: Path) -> Frames:
    """The runs of one such file, and the evaluations and cells that lie beside it."""
    try:
        runs = pd.read_parquet(path)
        beside = path.with_name(EVALUATED)
        rows = pd.read_parquet(beside) if beside.exists() else pd.DataFrame({"run_id": []})
    except (OSError, ValueError) as error:
        raise LogError(f"{path}: not a frame of runs: {error}") from None
    if "run_id" not in runs:
        raise LogError(f"{path}: not a frame of runs: it has no column run_id")
    return Frames(runs, History.of_frame(rows), (), lines(path))


def lines(path: Path) -> list[manifests.Line]:
    """The lines of the manifests of such a file's sweeps, which lie beside it."""
    return list(manifests.read(path.parent.glob(CELLS)))


def merge(parts: Sequence[Frames]) -> Frames:
    """Several frames as one; of a run that two have the first one's counts, and `replaced` says how far they differ."""
    replaced = {run_id: gap for part in parts for run_id, gap in part.replaced.items()}
    for one, other in combinations(parts, 2):
        for run_id in sorted({*one.runs["run_id"]} & {*other.runs["run_id"]}):
            histories = (part.history.one(run_id, [LOSS]) for part in (one, other))
            replaced[run_id] = _difference(*histories)
    runs = pd.concat([part.runs for part in parts], ignore_index=True)
    runs = runs.drop_duplicates("run_id").sort_values("run_id", ignore_index=True)
    rows = {run_id: own for part in reversed(parts) for run_id, own in part.history.rows.items()}
    unidentified = tuple(path for part in parts for path in part.unidentified)
    lines = [line for part in parts for line in part.lines]
    return Frames(runs, History(rows), unidentified, lines, replaced)


def _difference(some: pd.DataFrame, other: pd.DataFrame) -> float:
    """The largest difference of two runs' validation losses, nats; infinite if their evaluations differ."""
    losses = [run.set_index("step")[LOSS].dropna() for run in (some, other)]
    gaps = (losses[0] - losses[1]).abs()
    return float(gaps.fillna(np.inf).max()) if len(gaps) else float("inf")
