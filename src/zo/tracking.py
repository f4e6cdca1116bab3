"""A run's log: files of its own first, W&B fed from them, so that losing W&B loses nothing."""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from zo.config import TrackingConfig

FLUSH_SECONDS = 1.0
"""W&B writes its offline file at least this often; its own default of 15 s loses more in a crash."""


class RunLog:
    """Writes `metrics.jsonl`, `status.json`, `config.yaml`, `predictions.json` and the W&B run.

    Args:
        directory: The run's own; what an interrupted attempt left there is removed.
        run_id: Also the W&B id.
        name: What W&B shows.
        config: Plain nested data, the resolved configuration and provenance.
        config_yaml: The resolved configuration as text.
        tracking: W&B settings.
        group: W&B group, the sweep's name.
    """

    def __init__(
        self,
        directory: Path,
        *,
        run_id: str,
        name: str,
        config: Mapping[str, Any],
        config_yaml: str,
        tracking: TrackingConfig,
        group: str,
    ):
        self.directory = directory
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        (directory / "config.yaml").write_text(config_yaml)
        self._write_json("status.json", {"run/status": "running"})
        self._metrics = (directory / "metrics.jsonl").open("w", buffering=1)
        self._wandb_options: dict[str, Any] = {
            "project": tracking.project,
            "entity": tracking.entity,
            "id": run_id,
            "name": name,
            "group": group,
            "config": dict(config),
            "dir": str(directory),
            "mode": wandb_mode(tracking.mode),
            "resume": "allow",
            "settings": wandb.Settings(silent=True, x_transaction_log_flush_interval=FLUSH_SECONDS),
        }
        self._wandb: Any = None
        self._call_wandb(lambda: wandb.init(**self._wandb_options))

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Adds one row; `step` increases from call to call."""
        self._metrics.write(json.dumps({"step": step, **metrics}) + "\n")
        if self._wandb is not None:
            self._call_wandb(lambda: self._wandb.log(dict(metrics), step=step) or self._wandb)

    def write_predictions(self, predictions: Mapping[str, Any]) -> None:
        """Replaces the best step's predictions."""
        self._write_json("predictions.json", predictions)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Ends the run with its summary, which says how it ended. A W&B run that was lost is written once more."""
        self._metrics.close()
        if self._wandb is None:
            self._refill_wandb()
        if self._wandb is not None:
            self._call_wandb(lambda: self._wandb.summary.update(dict(summary)) or self._wandb)
        if self._wandb is not None:
            self._call_wandb(lambda: self._wandb.finish(exit_code=0))
        self._write_json("status.json", summary)

    def fail(self, error: str) -> None:
        """Ends the run that an exception stopped."""
        self._metrics.close()
        if self._wandb is not None:
            self._call_wandb(lambda: self._wandb.finish(exit_code=1))
        self._write_json("status.json", {"run/status": "failed", "run/error": error})

    def _refill_wandb(self) -> None:
        """Writes all rows of `metrics.jsonl` into a new fragment of the W&B run."""
        self._call_wandb(lambda: wandb.init(**self._wandb_options))
        for line in (self.directory / "metrics.jsonl").read_text().splitlines():
            if self._wandb is not None:
                row = json.loads(line)
                step = row.pop("step")
                self._call_wandb(lambda r=row, s=step: self._wandb.log(r, step=s) or self._wandb)

    def _call_wandb(self, call: Any) -> None:
        """Calls W&B; at its first failure says so and goes on without it."""
        try:
            self._wandb = call()
        except Exception as error:  # W&B raises whatever its connection raised
            self._wandb = None
            where = self.directory / "metrics.jsonl"
            print(
                f"W&B is lost ({type(error).__name__}: {error}); {where} goes on", file=sys.stderr
            )

    def _write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """Writes a whole file or none."""
        partial = self.directory / f".{name}.partial"
        partial.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
        partial.replace(self.directory / name)


def read_status(directory: Path) -> dict[str, Any]:
    """Returns a run's `status.json`, or an empty dict for a run that was never started."""
    path = directory / "status.json"
    return json.loads(path.read_text()) if path.exists() else {}


def wandb_mode(mode: str) -> str:
    """Resolves `auto`: WANDB_MODE if set, online with a key, offline without."""
    if mode != "auto":
        return mode
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"]
    return "online" if wandb.login(prompt=False) else "offline"
