"""All run files below some directories as two DataFrames: `runs` and `history`.

`runs`, one row per run id, sorted by run id:

| column | content |
|---|---|
| `run_id`, `group` | W&B's id and group (`group` is empty without one) |
| `status` | `finished`, `collapsed`, or `unfinished`: killed, failed or still running |
| `exit_code` | of the last fragment; missing if it was killed or still runs |
| `fragments` | number of run files of this id |
| `torn` | whether one of them ends in the middle of a record |
| `started` | first start of the run, UTC, as 2026-01-31T12:00:00 |
| `git_revisions` | revisions that wrote the fragments, in time order, joined by spaces |
| `optimizer.name`, `lr`, ... | the configuration, nested keys joined by dots; a list as JSON text |
| `provenance.*` | where the last fragment came from, as above |
| `best/val_accuracy`, ... | W&B's summary: keys with a slash |

`history`, one row per run id and step, sorted by both: `run_id`, `step` (int), then one column per
logged key in alphabetical order, NaN where a row lacks it. docs/design.md gives the unit of each.

The fragments of a resumed run are merged in the order of their start: the later one wins, per step
and per configuration and summary key.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.wandb_files import LogError, RunFile, read_run_file

RUN_DIRECTORY = re.compile(r"(offline-)?run-\d{8}_\d{6}-.+")  # not the symlink latest-run
FILE_COLUMNS = (
    *("run_id", "group", "status", "exit_code"),
    *("fragments", "torn", "started", "git_revisions"),
)


@dataclass(frozen=True)
class Frames:
    """The two frames, and the run files that belong to no run of `runs`.

    Attributes:
        runs: see the module.
        history: see the module.
        unidentified: files of runs that were killed before W&B wrote even their configuration.
    """

    runs: pd.DataFrame
    history: pd.DataFrame
    unidentified: tuple[Path, ...]


def find_run_files(directories: Iterable[Path]) -> list[Path]:
    """Every W&B run file below the directories, once, in the order of its path.

    Runs that were logged online leave the same kind of file as offline ones, and count as well.

    Raises:
        LogError: a directory does not exist.
    """
    found = set()
    for top in directories:
        if not top.is_dir():
            raise LogError(f"there is no directory {top}")
        for directory, _, files in os.walk(top):  # follows no symlinks
            if RUN_DIRECTORY.fullmatch(Path(directory).name):
                names = [f for f in files if f.startswith("run-") and f.endswith(".wandb")]
                found |= {(Path(directory) / name).resolve() for name in names}
    return sorted(found)


def read_frames(directories: Iterable[Path]) -> Frames:
    """Read all run files below the directories.

    Raises:
        LogError: a directory does not exist, a file is not a run file, or a run logged a
            configuration or summary key that is a column name of the frame.
    """
    by_id: dict[str, list[RunFile]] = defaultdict(list)
    for path in find_run_files(directories):
        run_file = read_run_file(path)
        by_id[run_file.run_id].append(run_file)
    runs, histories, unidentified = [], [], []
    for run_id in sorted(by_id):
        fragments = sorted(by_id[run_id], key=lambda f: (f.started, f.path.parent.name))
        if not any(fragment.identified for fragment in fragments):
            unidentified += [fragment.path for fragment in fragments]
            continue
        runs.append(_run_row(run_id, fragments))
        histories.append(_history(run_id, fragments))
    return Frames(_runs_frame(runs), _history_frame(histories), tuple(unidentified))


def _run_row(run_id: str, fragments: Sequence[RunFile]) -> dict[str, Any]:
    """Merge the fragments of one run, in time order, into its row of `runs`."""
    logged: dict[str, Any] = {}
    for fragment in fragments:
        logged |= fragment.config
    for fragment in fragments:
        logged |= fragment.summary
    clash = sorted(logged.keys() & set(FILE_COLUMNS))
    if clash:
        raise LogError(f"run {run_id} logs {clash[0]}, which the runs frame keeps for itself")
    status = logged.get("run/status")
    revisions = [f.config.get("provenance.git_revision") for f in fragments]
    identified = [fragment for fragment in fragments if fragment.identified]
    return {
        "run_id": run_id,
        "group": identified[-1].group,
        "status": status if status in ("finished", "collapsed") else "unfinished",
        "exit_code": fragments[-1].exit_code,
        "fragments": len(fragments),
        "torn": any(fragment.torn_at is not None for fragment in fragments),
        "started": datetime.fromtimestamp(identified[0].started, timezone.utc).strftime(
            "%Y-%m-%dT%H:%M:%S"
        ),
        "git_revisions": " ".join(dict.fromkeys(r for r in revisions if r)),
        **{key: _plain(value) for key, value in sorted(logged.items())},
    }


def _plain(value: Any) -> Any:
    """Lists and empty mappings as JSON text, so that a cell of the frame can be compared."""
    return json.dumps(value) if isinstance(value, list | dict) else value


def _history(run_id: str, fragments: Sequence[RunFile]) -> pd.DataFrame:
    """Merge the rows of one run; of two rows of one step the later fragment's stays."""
    by_step = {int(row["_step"]): row for fragment in fragments for row in fragment.history}
    steps = sorted(by_step)
    frame = pd.DataFrame([by_step[step] for step in steps], index=range(len(steps)))
    frame = frame[sorted(key for key in frame.columns if not key.startswith("_"))]
    frame.insert(0, "step", pd.Series(steps, dtype="int64"))
    frame.insert(0, "run_id", run_id)
    return frame


def _runs_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """One column order whatever the runs logged: the file's, the configuration's, the summary's."""
    logged = sorted({key for row in rows for key in row} - set(FILE_COLUMNS))
    configuration = [key for key in logged if "/" not in key]
    summary = [key for key in logged if "/" in key]
    return pd.DataFrame(rows, columns=[*FILE_COLUMNS, *configuration, *summary])


def _history_frame(histories: list[pd.DataFrame]) -> pd.DataFrame:
    if not histories:
        return pd.DataFrame(columns=["run_id", "step"])
    metrics = sorted({key for frame in histories for key in frame.columns} - {"run_id", "step"})
    frame = pd.concat(histories, ignore_index=True)
    return frame[["run_id", "step", *metrics]]
