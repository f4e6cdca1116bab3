"""What an interrupted run left behind, as far as all of its files agree."""

import sys
from dataclasses import dataclass
from pathlib import Path

from zo.config import RunConfig
from zo.run import trajectory
from zo.run.tracking import Row, read_rows
from zo.run.trajectory import Trajectory, TrajectoryError


@dataclass
class Past:
    """Steps that were made and are known.

    Attributes:
        rows: Rows of `metrics.jsonl` of steps 1, 2, …, without a gap.
        trajectory: Of the same steps, or of more; None where there is none.
    """

    rows: list[Row]
    trajectory: Trajectory | None

    @property
    def step(self) -> int:
        """The last step."""
        return len(self.rows)

    def cut(self, step: int) -> None:
        """Forgets what came after a step."""
        del self.rows[step:]


def read(directory: Path, cfg: RunConfig, run_id: str, replays: bool) -> Past:
    """Reads what a run's directory holds; what is torn or missing is said, and shortens it.

    Args:
        directory: The run's.
        cfg: Its configuration.
        run_id: Its id.
        replays: Whether its method's steps can be replayed, so that a step needs a trajectory to count.
    """
    rows = _whole(read_rows(directory), cfg) if cfg.steps > 0 else []
    past = Past(rows, None)
    if replays and rows:
        try:
            past.trajectory = Trajectory(directory / trajectory.NAME)
            _check_owner(past.trajectory, run_id)
        except TrajectoryError as error:
            print(f"{error}; the run starts at step 0", file=sys.stderr)
            return Past([], None)
        if past.trajectory.torn:
            whole = len(past.trajectory.losses)
            print(f"{past.trajectory.path}: not whole after step {whole}", file=sys.stderr)
        past.cut(_agreed(rows, past.trajectory))
    return past


def _agreed(rows: list[Row], found: Trajectory) -> int:
    """Returns the last step that rows and trajectory have both, and up to which they name the same bests."""
    steps = min(len(rows), len(found.losses))
    for row in rows[:steps]:
        best = found.bests.get(row["step"])
        if row.get("best/weights") != (best.weights if best is not None else None):
            return row["step"] - 1
    return steps


def _check_owner(found: Trajectory, run_id: str) -> None:
    if found.header.run_id != run_id:
        raise TrajectoryError(f"{found.path}: of another run, {found.header.run_id}")


def _whole(rows: list[Row], cfg: RunConfig) -> list[Row]:
    """Returns the rows before one out of turn, or one that lacks its evaluation, since the run collapsed in it."""
    for i, row in enumerate(rows):
        evaluated = (i + 1) % cfg.eval_every == 0 or i + 1 == cfg.steps
        if row["step"] != i + 1 or (evaluated and "eval/val_accuracy" not in row):
            return rows[:i]
    return rows
