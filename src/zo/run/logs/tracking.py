"""A run's log: files of its own first, W&B fed from them, so that losing W&B loses nothing."""

import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from errno import ENOENT
from pathlib import Path
from typing import Any

from zo.config import RunConfig
from zo.record.appender import Appender
from zo.run.command import Shared
from zo.run.logs.wandb_run import WandbRun
from zo.run.store import atomic, lock
from zo.run.store.directory import DirectoryError, load
from zo.run.store.rows import ATTEMPTS, METRICS, Row, read_rows

STATUS = "status.json"
ENDED = ("finished", "collapsed")  # Statuses of a run that has its result
ERROR = "error.txt"


class RunLog:
    """Writes `metrics.jsonl`, `status.json` and the W&B run.

    The W&B run is written from `metrics.jsonl` from its beginning, so that an offline run is one file with every step
    once, however often the run was interrupted; an online run is sent what it does not have yet. `rows` of an earlier
    attempt stay; what else is there is cut off.
    """

    def __init__(
        self,
        cfg: RunConfig,
        directory: Path,
        rows: Sequence[Row] = (),
        shared: Shared | None = None,
    ):
        self.directory = directory
        keep = sum(len(atomic.seal(row)) for row in rows)
        self._metrics = Appender(directory / METRICS, keep)
        set_status(directory, {"run/status": "running"})
        (directory / ERROR).unlink(missing_ok=True)
        self._wandb = WandbRun(cfg, directory, rows, shared or Shared())

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Adds one row; `step` increases. Raises FileNotFoundError if somebody has removed the rows."""
        if not (self.directory / METRICS).exists():
            raise FileNotFoundError(ENOENT, "removed", str(self.directory / METRICS))
        row = {"step": step, **metrics}
        self._metrics.write(atomic.seal(row))
        self._wandb.feed(row)

    def sync(self) -> None:
        """Waits until the disk has all rows."""
        self._metrics.sync()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Ends the run with its summary, which says how it ended."""
        self._metrics.close()
        if not self._wandb.finish(read_rows(self.directory), summary):
            print(f"zo log {self.directory} writes W&B's file", file=sys.stderr)
        set_status(self.directory, summary)

    def abandon(self, status: str) -> None:
        """Ends an attempt that was `interrupted` or has `failed`."""
        self._metrics.close()
        self._wandb.abandon(status)


def read_status(directory: Path) -> dict[str, Any]:
    """Returns a run's `status.json`, or an empty dict for a run that was never started or whose file is torn."""
    return atomic.read_json(directory / STATUS)


def set_status(directory: Path, status: Mapping[str, Any]) -> None:
    """Replaces a run's `status.json`."""
    atomic.replace_json(directory / STATUS, status)


def note_attempt(directory: Path, first_step: int, provenance: Mapping[str, Any]) -> None:
    """Adds this start to `attempts.jsonl`."""
    file = Appender(directory / ATTEMPTS)
    file.write((json.dumps({"after_step": first_step, **provenance}) + "\n").encode())
    file.close()


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


def log_again(directory: Path) -> None:
    """Replaces the W&B files in the directory of a run that has ended by one with all of its rows.

    Raises:
        DirectoryError: If it is no run's directory, or the run has not ended.
        LockedError: If a process holds it.
    """
    cfg, directory = load(directory), directory.resolve()
    with lock.held(directory):
        status, rows = read_status(directory), read_rows(directory)
        if status.get("run/status") not in ENDED:
            again = f"zo resume {directory} goes on with it"
            raise DirectoryError(f"{directory}: the run has not ended; {again}")
        made = rows[-1]["step"] if rows else 0
        if made != status["run/steps"]:
            lost = f"steps {made + 1} to {status['run/steps']} cannot be read"
            raise DirectoryError(f"{directory / METRICS}: {lost}; resume=false makes the run anew")
        cfg.tracking.mode = "offline"
        if not WandbRun(cfg, directory, rows, Shared()).finish(rows, status):
            raise DirectoryError(f"{directory}: W&B's file could not be written")
