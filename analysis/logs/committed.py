"""Kept measurements: the runs frame as a parquet file, and what the runs evaluated beside it.

runs.parquet           the runs frame
evaluations.parquet    a row per evaluation: run_id, step and what was logged
cells.parquet          the lines of their sweeps' manifests
"""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pandas as pd

from analysis.logs import manifests
from analysis.logs.fragments import ENDED
from analysis.logs.frames import Frames
from analysis.logs.history import History
from analysis.logs.run_file import LogError

EVALUATED, CELLS = "evaluations.parquet", "cells.parquet"
LOSS = "eval/val_loss"
RESULTS = {
    "best/step": ("best step", "{:g}"),
    "best/test_accuracy": ("test accuracy", "{:.2%}"),
}


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
    """Several frames as one; of a run that two have ended the first one's counts, and `replaced` says how they differ.

    One that has ended counts before an attempt without an end.
    """
    replaced = {run_id: how for part in parts for run_id, how in part.replaced.items()}
    for one, other in combinations(parts, 2):
        for run_id in sorted(_ended(one) & _ended(other)):
            replaced[run_id] = _difference(run_id, one, other)
    of: dict[str, Frames] = {}  # run id -> the part that counts
    for known in (lambda part: part.runs["run_id"], _ended):
        for part in reversed(parts):
            of |= dict.fromkeys(known(part), part)
    counted = [
        part.runs.loc[[of[run_id] is part for run_id in part.runs["run_id"]]] for part in parts
    ]
    runs = pd.concat(counted, ignore_index=True).sort_values("run_id", ignore_index=True)
    rows = {
        run_id: own
        for part in parts
        for run_id, own in part.history.rows.items()
        if of.get(run_id, part) is part
    }
    unidentified = tuple(path for part in parts for path in part.unidentified)
    lines = [line for part in parts for line in part.lines]
    return Frames(runs, History(rows), unidentified, lines, replaced)


def _ended(part: Frames) -> set[str]:
    return {*part.runs.loc[part.runs["status"].isin(ENDED), "run_id"]}


def _difference(run_id: str, now: Frames, before: Frames) -> str:
    """How a run made again differs: its validation losses, best step and test accuracy; "" if in nothing."""
    losses = [
        part.history.one(run_id, [LOSS]).set_index("step")[LOSS].dropna() for part in (now, before)
    ]
    gaps = (losses[0] - losses[1]).abs()
    differ = [f"losses by {gaps.max():.1e} nats"] if (gaps > 0).any() else []
    differ = ["other evaluations"] if gaps.empty or gaps.isna().any() else differ
    new, old = (part.runs.set_index("run_id").loc[run_id] for part in (now, before))
    for key, (said, shown) in RESULTS.items():
        was, is_now = old.get(key), new.get(key)
        if pd.notna(was) and pd.notna(is_now) and was != is_now:
            differ.append(f"{said} {shown.format(was)}, now {shown.format(is_now)}")
    return "; ".join(differ)
