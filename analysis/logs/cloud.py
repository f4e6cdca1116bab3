"""Runs at W&B's cloud, through `wandb.Api`: each run's complete history, read once and kept.

Per project W&B is asked for the list of its runs (configuration, summary, state). A run's history is read by a scan of
all its steps, never sampled, and kept until W&B lists the run differently: other state, heartbeat, summary or number
of rows, as it does while a run goes on.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.logs.fragments import Fragment, read_changed
from analysis.logs.run_file import LogError, flatten, history_table

RUNS_PER_PAGE = 100
STEPS_PER_PAGE = 1000  # W&B's own default
CONNECTIONS = 4
TIMEOUT = 60  # seconds that W&B may take for an answer
EXIT_CODES = {"finished": 0, "failed": 1}  # of a run's state; of others nobody knows
NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""How W&B's server writes what JSON has no number for."""


def read(projects: Sequence[str], cache_dir: Path) -> list[Fragment]:
    """A fragment per run of some projects, each as entity/project; `cache_dir`: where histories are kept."""
    return [run for project in projects for run in _read_project(project, cache_dir)]


def _read_project(project: str, cache_dir: Path) -> list[Fragment]:
    directory = cache_dir / "cloud" / project.replace("/", "+")
    with as_log_error(f"the runs of {project} cannot be listed"):
        runs = {run.id: run for run in _api().runs(project, per_page=RUNS_PER_PAGE, lazy=False)}
        stamps = {name: _stamp(run) for name, run in runs.items()}
    fetch = partial(_fetch, project, runs)
    return read_changed(stamps, fetch, directory, _in_threads, f"reading {project}")


def _in_threads(*given: Any) -> Iterator[Fragment]:
    """As `map`, several at a time."""
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        yield from pool.map(*given)


def _fetch(project: str, runs: Mapping[str, Any], wandb_id: str) -> Fragment:
    """Read one run's history."""
    place, run = f"{project}/{wandb_id}", runs[wandb_id]
    config = flatten(_numbers(run.config))
    with as_log_error(f"the history of {place} cannot be read"):
        scan = run.scan_history(page_size=STEPS_PER_PAGE, use_cache=False)
        history = history_table(_by_step(scan))
    return Fragment(
        place=place,
        source=project,
        run_id=str(config.get("provenance.run_id", wandb_id)),
        wandb_id=wandb_id,
        identified=True,
        group=run.group or "",
        started=pd.to_datetime(run.created_at, utc=True).timestamp(),
        config=config,
        summary=flatten(_numbers(run.summary._json_dict)),
        exit_code=EXIT_CODES.get(run.state),
        is_copy=True,
        history=history,
    )


def _by_step(scan: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a scan, one per step: an export and the live rows behind it may overlap."""
    rows: dict[int, dict[str, Any]] = {}
    for row in scan:
        values = _numbers(row)
        known = rows.setdefault(int(values["_step"]), {})
        known |= {key: value for key, value in values.items() if value is not None}
    return [rows[step] for step in sorted(rows)]


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """With the numbers that JSON lacks."""
    return {k: NUMBERS.get(v, v) if isinstance(v, str) else v for k, v in values.items()}


def _stamp(run: Any) -> str:
    """Changes when W&B lists the run differently."""
    said = [run.group, run.state, run.created_at, run.heartbeat_at]
    said += [run._attrs.get("historyLineCount"), dict(run.config), dict(run.summary._json_dict)]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:24]


def _api() -> Any:
    """W&B's interface."""
    import wandb  # here, since only this needs the whole of it

    with as_log_error("W&B cannot be asked"):
        if not wandb.login(prompt=False):
            raise LogError("W&B needs a key: `wandb login`, or WANDB_API_KEY in the environment")
        return wandb.Api(timeout=TIMEOUT)


@contextmanager
def as_log_error(what: str) -> Iterator[None]:
    """Makes one sentence of an error in the block, of which W&B raises whatever its connection raised."""
    try:
        yield
    except LogError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise LogError(f"{what}: {lines[0]}") from None
