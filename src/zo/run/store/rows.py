"""Rows of metrics.jsonl, one per step: all that a run measured, and all that resuming it needs."""

import importlib.metadata
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zo.config import RunConfig, identity_settings, method_code
from zo.record.trajectory import Best, Header, Trajectory, TrajectoryError
from zo.run import provenance
from zo.run.store import atomic
from zo.run.store.directory import Inputs, load
from zo.tasks.measures import LOSS, in_row

METRICS, TEXTS = "metrics.jsonl", "texts.jsonl"
ATTEMPTS = "attempts.jsonl"  # A line per start of the run: after which step, and its provenance

TRAJECTORY = "trajectory.bin"
"""What the steps measured, written at the end, to be shared: `zo trajectory` explains it."""

LOSSES = "train/losses"  # Key of what a step's forward passes measured, in their order

OF_EVALUATION = ("eval/", "best/", "time/eval_s", "mem/", "optim/survives")
"""Beginnings of the keys that an evaluation, and a step before one, add to its step's row."""

Row = dict[str, Any]


def read_rows(directory: Path) -> list[Row]:
    """Returns the rows of `metrics.jsonl` from the first to the last before something that is not the next one.

    A torn or altered line, or a step out of turn, ends them: what comes after cannot be relied on.
    """
    path = directory / METRICS
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    rows: list[Row] = []
    for row in map(atomic.unseal, lines):
        if row is None or not isinstance(row.get("step"), int):
            break
        if rows and row["step"] != rows[-1]["step"] + 1:
            break
        rows.append(row)
    return rows


def write_rows(directory: Path, rows: Sequence[Row]) -> None:
    """Replaces a run's rows."""
    atomic.replace(directory / METRICS, b"".join(map(atomic.seal, rows)))


def evaluates(cfg: RunConfig, step: int) -> bool:
    """Returns whether an evaluation follows a step."""
    if cfg.eval_growth is None or step < cfg.eval_every:
        return step % cfg.eval_every == 0 or step == cfg.steps
    near = round(math.log(step / cfg.eval_every, cfg.eval_growth))
    apart = step * math.sqrt(cfg.eval_growth) < cfg.steps  # the last step's is not one more
    return step == cfg.steps or (apart and step == round(cfg.eval_every * cfg.eval_growth**near))


def usable_rows(rows: Sequence[Row], cfg: RunConfig, losses_per_step: int) -> list[Row]:
    """Returns the rows of steps 1, 2, … that need not be made again.

    To be replayed a step needs `losses_per_step`; 0 for a method whose steps cannot be replayed.
    """
    usable: list[Row] = []
    for row in rows[: cfg.steps]:
        step = len(usable) + 1
        evaluated = LOSS in row or not evaluates(cfg, step)  # not if it collapsed in it
        if row["step"] != step or not evaluated or len(row.get(LOSSES, ())) != losses_per_step:
            break
        usable.append(row)
    return usable


def trajectory_of(directory: Path, rows: Sequence[Row] | None = None) -> Trajectory:
    """Returns what a run measured as a trajectory.

    Raises:
        DirectoryError: If it is no run's directory.
        TrajectoryError: If it has no steps that can be replayed.
    """
    cfg, inputs = load(directory), Inputs.load(directory)
    rows = read_rows(directory) if rows is None else rows
    path = directory / METRICS
    if inputs is None or "noise" not in inputs.read or not rows or LOSSES not in rows[0]:
        raise TrajectoryError(f"{path}: no step of {cfg.optimizer.name} that can be replayed")
    revision = provenance.git_revision()
    code = inputs.files.get(method_code.KEY, method_code.COMMITTED)
    header = Header(
        run_id=directory.resolve().name,
        config=identity_settings(cfg),
        base=inputs.read["weights"],
        parameters=int(inputs.read["parameters"]),
        noise=inputs.read["noise"],
        losses_per_step=len(rows[0][LOSSES]),
        written_by={"torch": importlib.metadata.version("torch"), "git": revision, "method": code},
    )
    bests = {
        row["step"]: Best(
            row[f"eval/val_{measure.name}"], row[f"eval/test_{measure.name}"], row["best/weights"]
        )
        for row in rows
        if "best/weights" in row and (measure := in_row(row))
    }
    return Trajectory(path, header, [tuple(row[LOSSES]) for row in rows], bests)
