"""Committed measurements: the runs frame as a parquet file, and what the runs evaluated beside it.

    results/measured/runs.parquet           the runs frame, and in `cells` the keys of the cells that a run filled,
    as JSON results/measured/evaluations.parquet    a row per evaluation: run_id, step and EVALUATIONS

Only evaluations are kept of a history, so that the measurements stay small.
"""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from analysis.logs.frames import Frames
from analysis.logs.history import History
from analysis.logs.run_file import LogError

EVALUATIONS = ("train/forwards", "time/step_s", "eval/val_accuracy", "eval/val_loss")
RUNS, EVALUATED = "runs.parquet", "evaluations.parquet"


def read(path: Path) -> Frames:
    """The runs of one such file, and the evaluations that lie beside it.

    Raises:
        LogError: it is no such file.
    """
    try:
        runs = pd.read_parquet(path)
        beside = path.with_name(EVALUATED)
        rows = pd.read_parquet(beside) if beside.exists() else pd.DataFrame({"run_id": []})
    except (OSError, ValueError) as error:
        raise LogError(f"{path}: not a frame of runs: {error}") from None
    if "run_id" not in runs:
        raise LogError(f"{path}: not a frame of runs: it has no column run_id")
    return Frames(runs, History.of_frame(rows), ())


def write(frames: Frames, directory: Path) -> list[Path]:
    """Write both files; the paths."""
    rows = [evaluated(frames.history.one(run_id, EVALUATIONS)) for run_id in frames.runs["run_id"]]
    history = pd.concat([r for r in rows if len(r)] or rows[:1], ignore_index=True)
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / RUNS, directory / EVALUATED]
    for path, frame in zip(paths, (frames.runs, history), strict=True):
        frame.to_parquet(path, index=False, compression="zstd")
    return paths


def evaluated(history: pd.DataFrame) -> pd.DataFrame:
    """The rows of one run with an evaluation; the seconds of the steps since the one before are summed."""
    there = history["eval/val_accuracy"].notna()
    seconds = history["time/step_s"].fillna(0.0).cumsum()[there]
    return history[there].assign(**{"time/step_s": seconds.diff().fillna(seconds)})


def merge(parts: Iterable[Frames]) -> Frames:
    """Several frames as one; of a run that two have the first one's counts."""
    kept = list(parts)
    runs = pd.concat([part.runs for part in kept], ignore_index=True)
    runs = runs.drop_duplicates("run_id").sort_values("run_id", ignore_index=True)
    rows = {
        run_id: part.history.rows(run_id)
        for part in reversed(kept)
        for run_id in part.history.run_ids
    }
    return Frames(runs, History(rows), tuple(path for part in kept for path in part.unidentified))
