"""Runs at W&B's cloud, through `wandb.Api`: each run's complete history, read once and kept.

Per project W&B is asked for the list of its runs (configuration, summary, state). A run's history is read by a scan of
all its steps, never sampled, and kept until W&B lists the run differently: other state, heartbeat, summary or number
of rows, as it does while a run goes on. Every run is kept as soon as it is read, so that what was interrupted goes on
where it was.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.logs import fragments
from analysis.logs.fragments import Fragment, kept_at, with_history
from analysis.logs.progress import progress
from analysis.logs.run_file import LogError, flatten, history_table

RUNS_PER_PAGE = 100
STEPS_PER_PAGE = 1000  # W&B's own default
CONNECTIONS = 4
TIMEOUT = 60  # seconds that W&B may take for an answer
EXIT_CODES = {"finished": 0, "failed": 1}  # of a run's state; of others nobody knows
NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""How W&B's server writes what JSON has no number for."""

Listed = dict[str, Any]
"""One run as W&B lists it: id, group, state, created, heartbeat, lines, config, summary."""


def read(projects: Sequence[str], cache_dir: Path | None) -> list[Fragment]:
    """A fragment per run of some projects.

    Args:
        projects: each as entity/project.
        cache_dir: where histories are kept; None keeps nothing.
    """
    return [run for project in projects for run in _read_project(project, cache_dir)]


def _read_project(project: str, cache_dir: Path | None) -> list[Fragment]:
    directory = None if cache_dir is None else cache_dir / "cloud" / project.replace("/", "+")
    with _as_log_error(f"the runs of {project} cannot be listed"):
        listed = [_listed(run) for run in _api().runs(project, per_page=RUNS_PER_PAGE, lazy=False)]
    known: dict[str, Fragment] = {}
    for run in listed:
        kept = fragments.read(kept_at(directory, run["id"]))
        if kept and kept.stamp == _stamp(run):
            known[run["id"]] = kept
    wanted = [run for run in listed if run["id"] not in known]
    known |= {fragment.wandb_id: fragment for fragment in _fetch_all(project, wanted, directory)}
    return [known[run["id"]] for run in listed]


def _listed(run: Any) -> Listed:
    return {
        "id": run.id,
        "group": run.group or "",
        "state": run.state,
        "created": run.created_at,
        "heartbeat": run.heartbeat_at,
        "lines": run._attrs.get("historyLineCount"),
        "config": dict(run.config),
        "summary": dict(run.summary._json_dict),
    }


def _fetch_all(project: str, runs: Sequence[Listed], directory: Path | None) -> Iterator[Fragment]:
    """Read the histories of some runs, several at a time, and keep each."""
    if not runs:
        return
    api = _api()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        read = pool.map(lambda run: _fetch(api, project, run, directory), runs)
        yield from progress(read, f"reading {project}", len(runs))


def _fetch(api: Any, project: str, run: Listed, directory: Path | None) -> Fragment:
    """Read one run's history, and keep it."""
    place, config = f"{project}/{run['id']}", flatten(_public(run["config"]))
    with _as_log_error(f"the history of {place} cannot be read"):
        scan = api.run(place).scan_history(page_size=STEPS_PER_PAGE, use_cache=False)
        history = history_table(_by_step(scan))
    fragment = Fragment(
        place=place,
        source=project,
        run_id=str(config.get("provenance.run_id", run["id"])),
        wandb_id=run["id"],
        identified=True,
        group=run["group"],
        started=pd.to_datetime(run["created"], utc=True).timestamp(),
        config=config,
        summary=flatten(_public(run["summary"])),
        exit_code=EXIT_CODES.get(run["state"]),
        stamp=_stamp(run),
        is_copy=True,
    )
    return fragments.write(with_history(fragment, history), kept_at(directory, run["id"]))


def _by_step(scan: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a scan, one per step: an export and the live rows behind it may overlap."""
    rows: dict[int, dict[str, Any]] = {}
    for row in scan:
        values = _numbers(row)
        known = rows.setdefault(int(values["_step"]), {})
        known |= {key: value for key, value in values.items() if value is not None}
    return [rows[step] for step in sorted(rows)]


def _public(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without W&B's own keys, and with the numbers that JSON lacks."""
    return {key: value for key, value in _numbers(values).items() if not key.startswith("_")}


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """With the numbers that JSON lacks."""
    return {k: NUMBERS.get(v, v) if isinstance(v, str) else v for k, v in values.items()}


def _stamp(run: Listed) -> str:
    """Changes when W&B lists the run differently."""
    return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:24]


def _api() -> Any:
    """W&B's interface."""
    import wandb  # here, since only this needs the whole of it

    with _as_log_error("W&B cannot be asked"):
        if not wandb.login(prompt=False):
            raise LogError("W&B needs a key: `wandb login`, or WANDB_API_KEY in the environment")
        return wandb.Api(timeout=TIMEOUT)


@contextmanager
def _as_log_error(what: str) -> Iterator[None]:
    """Makes one sentence of an error in the block, of which W&B raises whatever its connection raised."""
    try:
        yield
    except LogError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise LogError(f"{what}: {lines[0]}") from None
