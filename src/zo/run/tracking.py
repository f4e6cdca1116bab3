"""A run's log: files of its own first, W&B fed from them, so that losing W&B loses nothing."""

import json
import os
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zo.config import TrackingConfig
from zo.run import atomic
from zo.run.rows import LOSSES, METRICS, Row, read_rows

FLUSH_SECONDS = 1.0
"""W&B writes its offline file at least this often; its own default of 15 s loses more in a crash."""

STATUS = "status.json"
ERROR = "error.txt"
ONLY_IN_FILE = ("step", "best/", LOSSES)
"""Beginnings of keys that W&B's history does not have: its own step, what its summary has, and lists."""


class RunLog:
    """Writes `metrics.jsonl`, `status.json`, `predictions.json` and the W&B run.

    The W&B run is written from `metrics.jsonl` from its beginning, so that an offline run is one file with every step
    once, however often the run was interrupted; an online run is sent what it does not have yet.

    Args:
        directory: The run's own, which exists.
        rows: What an earlier attempt wrote and is to stay; what else is in `metrics.jsonl` is cut off.
        run_id: Also the W&B id.
        name: What W&B shows.
        config: Plain nested data, the resolved configuration and provenance.
        tracking: W&B settings.
    """

    def __init__(
        self,
        directory: Path,
        rows: Sequence[Row] = (),
        *,
        run_id: str,
        name: str,
        config: Mapping[str, Any],
        tracking: TrackingConfig,
    ):
        self.directory = directory
        self._mode = wandb_mode(tracking.mode)
        keep = sum(len(atomic.seal(row)) for row in rows)
        self._metrics = atomic.Appender(directory / METRICS, keep)
        set_status(directory, {"run/status": "running"})
        (directory / ERROR).unlink(missing_ok=True)
        self._wandb_options: dict[str, Any] = {
            "project": tracking.project,
            "entity": tracking.entity,
            "id": run_id,
            "name": name,
            "group": tracking.group,
            "config": dict(config),
            "dir": str(directory),
            "mode": self._mode,
            "resume": "allow",
        }
        self._wandb: Any = None
        self._start_wandb(rows)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Adds one row; `step` increases from call to call."""
        row = {"step": step, **metrics}
        self._metrics.write(atomic.seal(row))
        self._feed_wandb(row)

    def sync(self) -> None:
        """Waits until the disk has all rows."""
        self._metrics.sync()

    def write_predictions(self, predictions: Mapping[str, Any]) -> None:
        """Replaces the best step's predictions."""
        atomic.replace_json(self.directory / "predictions.json", predictions)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Ends the run with its summary, which says how it ended. A W&B run that was lost is written once more."""
        self._metrics.close()
        if self._wandb is None:
            self._start_wandb(read_rows(self.directory))
        if self._wandb is not None:
            self._call_wandb(lambda: self._wandb.summary.update(dict(summary)) or self._wandb)
        self._end_wandb(0)
        set_status(self.directory, summary)

    def abandon(self) -> None:
        """Ends an attempt that did not come to the run's end."""
        self._metrics.close()
        self._end_wandb(1)

    def _start_wandb(self, rows: Sequence[Row]) -> None:
        """Begins the W&B run, or goes on with it if it is online, and sends the rows that it does not have."""
        if self._mode == "disabled":
            return
        import wandb  # here: it takes two seconds, and a run without it needs none of them

        if self._mode == "offline":
            shutil.rmtree(self.directory / "wandb", ignore_errors=True)
        settings = wandb.Settings(silent=True, x_transaction_log_flush_interval=FLUSH_SECONDS)
        self._call_wandb(lambda: wandb.init(**self._wandb_options, settings=settings))
        known = self._wandb.step if self._wandb is not None else 0
        for row in rows:
            if row["step"] >= known:
                self._feed_wandb(row)

    def _feed_wandb(self, row: Row) -> None:
        if self._wandb is not None:
            data = {k: v for k, v in row.items() if not k.startswith(ONLY_IN_FILE)}
            self._call_wandb(lambda: self._wandb.log(data, step=row["step"]) or self._wandb)

    def _end_wandb(self, exit_code: int) -> None:
        if self._wandb is not None:
            self._call_wandb(lambda: self._wandb.finish(exit_code=exit_code))

    def _call_wandb(self, call: Any) -> None:
        """Calls W&B; at its first failure says so and goes on without it."""
        try:
            self._wandb = call()
        except Exception as error:  # W&B raises whatever its connection raised
            self._wandb = None
            where = self.directory / METRICS
            print(
                f"W&B logging stopped ({type(error).__name__}: {error}); "
                f"the run goes on, all of its rows are in {where}",
                file=sys.stderr,
            )


class NoLog:
    """Stands for a `RunLog` on processes that write nothing."""

    def __init__(self, directory: Path):
        self.directory = directory

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Does nothing."""

    def sync(self) -> None:
        """Does nothing."""


def read_status(directory: Path) -> dict[str, Any]:
    """Returns a run's `status.json`, or an empty dict for a run that was never started or whose file is torn."""
    path = directory / STATUS
    try:
        status = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def set_status(directory: Path, status: Mapping[str, Any]) -> None:
    """Replaces a run's `status.json`."""
    atomic.replace_json(directory / STATUS, status)


def note_interruption(directory: Path, signal: str) -> int:
    """Notes that an attempt was asked to stop; returns after how many steps."""
    steps = len(read_rows(directory))
    set_status(directory, {"run/status": "interrupted", "run/signal": signal, "run/steps": steps})
    return steps


def note_failure(directory: Path, error: BaseException) -> None:
    """Notes that an exception stopped an attempt; `error.txt` has its traceback."""
    last = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    try:
        set_status(directory, {"run/status": "failed", "run/error": last})
        atomic.replace(directory / ERROR, "".join(traceback.format_exception(error)))
    except OSError as full:  # the disk may be why it failed
        print(f"{directory}: {last}; nor can that be written: {full}", file=sys.stderr)


def wandb_mode(mode: str) -> str:
    """Resolves `auto`: WANDB_MODE if set, online with a key, offline without."""
    if mode != "auto":
        return mode
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"]
    import wandb

    return "online" if wandb.login(prompt=False) else "offline"
