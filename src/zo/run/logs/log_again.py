"""W&B's file of a run that has ended without one, written from its rows: `python -m zo.run log DIR`."""

from dataclasses import replace
from pathlib import Path

from zo.config import describe
from zo.run.logs.tracking import ENDED, logged_config, read_status
from zo.run.logs.wandb_run import WandbRun
from zo.run.store import lock
from zo.run.store.directory import DirectoryError, load
from zo.run.store.rows import METRICS, read_rows


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
            again = f"python -m zo.run {directory} goes on with it"
            raise DirectoryError(f"{directory}: the run has not ended; {again}")
        made = rows[-1]["step"] if rows else 0
        if made != status["run/steps"]:
            lost = f"steps {made + 1} to {status['run/steps']} cannot be read"
            raise DirectoryError(f"{directory / METRICS}: {lost}; resume=false makes the run anew")
        tracking, config = replace(cfg.tracking, mode="offline"), logged_config(cfg, directory)
        log = WandbRun(directory, rows, name=describe(cfg), config=config, tracking=tracking)
        if not log.finish(rows, status):
            raise DirectoryError(f"{directory}: W&B's file could not be written")
