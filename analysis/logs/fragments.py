"""A fragment: what one run file, or W&B's copy of a run, says of a run; and how fragments are kept on disk.

A kept fragment is one parquet file: the history as its rows, everything else as JSON in its metadata.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.logs.history import STEP, Rows

VERSION = 3
"""Raised when a kept fragment means something else than before; others are then read anew."""

METADATA = b"fragment"
FORWARDS = "train/forwards"
EVALUATION = "eval/val_accuracy"


@dataclass
class Fragment:
    """One fragment of a run."""

    place: str  # path of the run file, or the run's place at W&B
    run_id: (
        str  # as the configuration says, else W&B's id; of the file name if there is no run record
    )
    # W&B's id, another one in every beginning of a run that was made anew
    wandb_id: str = ""
    source: str = ""  # as the user gave it: a directory, or entity/project
    # whether the fragment has the run's configuration and group, W&B's first record
    identified: bool = False
    group: str = ""  # W&B group; empty without one
    started: float = 0.0  # seconds since 1970, by the clock of the machine that ran it
    # flat, nested keys joined by dots (`optimizer.name`); lists stay lists
    config: dict[str, Any] = field(default_factory=dict)
    # flat, as `config`; the last value of every history key is among it
    summary: dict[str, Any] = field(default_factory=dict)
    # 0 or another number; None if the process was killed or is still running
    exit_code: int | None = None
    torn_at: int | None = None  # byte at which reading stopped early; None if the file is whole
    rows: int = 0  # number of history rows
    last_step: int | None = None  # the largest step; None without rows
    # forward passes so far at every evaluated step, None where they were not logged
    forwards: dict[int, float | None] = field(default_factory=dict)
    stamp: str = ""  # what tells whether the origin has changed since it was read
    is_copy: bool = False  # whether it is W&B's copy of a run rather than a run file
    # one row per history record, in the order of the file: `step` (int64), then the logged keys in alphabetical
    # order, float64, NaN where a row lacks one. A key that has other values than numbers is a column of JSON texts
    history: Rows = field(default_factory=lambda: pa.table({STEP: pa.array([], pa.int64())}))


def status_of(summary: Mapping[str, Any]) -> str:
    """`finished` and `collapsed` as the run says itself, else `unfinished`."""
    status = summary.get("run/status")
    return status if status in ("finished", "collapsed") else "unfinished"


def with_history(fragment: Fragment, table: pa.Table) -> Fragment:
    """The fragment with its rows, and what is said of a run without looking at them again."""
    steps = table[STEP].to_numpy()
    last = int(steps.max()) if len(steps) else None
    rows, forwards = len(steps), _forwards(table)
    return replace(fragment, rows=rows, last_step=last, forwards=forwards, history=table)


def _forwards(table: pa.Table) -> dict[int, float | None]:
    names = [key for key in (EVALUATION, FORWARDS) if key in table.column_names]
    rows = table.select([STEP, *names]).to_pandas().reindex(columns=[STEP, EVALUATION, FORWARDS])
    rows = rows[rows[EVALUATION].notna()]
    values = pd.to_numeric(rows[FORWARDS], errors="coerce").tolist()
    return {
        step: None if value != value else value
        for step, value in zip(rows[STEP].tolist(), values, strict=True)
    }


def write(fragment: Fragment, path: Path | None) -> Fragment:
    """Keep a fragment whose rows are in memory, unless the path is None; the fragment with its rows on disk."""
    if path is None:
        return fragment
    assert isinstance(fragment.history, pa.Table)
    said = {k: v for k, v in asdict(replace(fragment, history=path)).items() if k != "history"}
    metadata = {METADATA: json.dumps({"version": VERSION, **said}).encode()}
    table = fragment.history.replace_schema_metadata(metadata)
    with whole(path) as partial:
        pq.write_table(table, partial, compression="zstd", use_dictionary=False)
    return replace(fragment, history=path)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write a file, which then replaces the one at `path`: nobody reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    yield partial
    partial.replace(path)


def kept_at(directory: Path | None, key: str) -> Path | None:
    """Where the fragment of an origin, by its path or id, is kept; None where nothing is."""
    name = f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:24]}.parquet"
    return None if directory is None else directory / name


def read(path: Path | None) -> Fragment | None:
    """A kept fragment, its rows left on disk; None if there is none, or one of another version."""
    if path is None:
        return None
    try:
        metadata = pq.read_schema(path).metadata
    except (OSError, pa.ArrowInvalid):
        return None
    said = json.loads((metadata or {}).get(METADATA, b"{}"))
    if said.pop("version", None) != VERSION:
        return None
    said["forwards"] = {int(step): value for step, value in said["forwards"].items()}
    return Fragment(**said, history=path)
