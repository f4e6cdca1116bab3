"""Kept measurements: the runs frame as a parquet file, and what the runs evaluated beside it.

runs.parquet           the runs frame
evaluations.parquet    a row per evaluation: run_id, step and what was logged
cells.parquet          the lines of their sweeps' manifests
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.logs import manifests
from analysis.logs.frames import Frames
from analysis.logs.history import History
from analysis.logs.run_file import LogError

EVALUATED, CELLS = "evaluations.parquet", "cells.parquet"


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
    cells = [found for found in [path.with_name(CELLS)] if found.exists()]
    return Frames(runs, History.of_frame(rows), (), list(manifests.read(cells)))


def merge(parts: Sequence[Frames]) -> Frames:
    """Several frames as one; of a run that two have the first one's counts."""
    runs = pd.concat([part.runs for part in parts], ignore_index=True)
    runs = runs.drop_duplicates("run_id").sort_values("run_id", ignore_index=True)
    histories = [part.history for part in reversed(parts)]
    rows = {run_id: history.rows(run_id) for history in histories for run_id in history.run_ids}
    unidentified = tuple(path for part in parts for path in part.unidentified)
    return Frames(runs, History(rows), unidentified, [line for p in parts for line in p.lines])
