"""A fragment: what one run file, or W&B's copy of a run, says of a run; and how fragments are kept on disk.

A kept fragment is one parquet file: the history as its rows, everything else as JSON in its metadata. It is
written under another name first, so that there is a whole one or none.
"""

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.logs.history import Rows
from analysis.logs.run_file import STEP, RunFile

VERSION = 1
"""Raised when a kept fragment means something else than before; others are then read anew."""

METADATA = b"fragment"
FORWARDS = "train/forwards"
EVALUATION = "eval/val_accuracy"


@dataclass(frozen=True)
class Fragment:
    """One fragment of a run."""

    place: str  # path of the run file, or the run's place at W&B
    source: str  # as the user gave it: a directory, or entity/project
    run_id: str  # W&B's id
    identified: bool  # whether the fragment has the run's configuration and group
    group: str  # W&B group; empty without one
    started: float  # seconds since 1970
    config: dict[str, Any]  # flat, nested keys joined by dots
    summary: dict[str, Any]  # flat, as `config`
    exit_code: int | None  # 0 or another number; None if the process was killed or is still running
    torn: bool  # whether the end of it is lost or unreadable
    rows: int = 0  # number of history rows
    last_step: int | None = None  # the largest step; None without rows
    # forward passes so far at every evaluated step, None where they were not logged
    forwards: dict[int, float | None] = field(default_factory=dict)
    stamp: str = ""  # what tells whether the origin has changed since it was read
    is_copy: bool = False  # whether it is W&B's copy of a run rather than a run file
    # the rows themselves, see `analysis.logs.history`
    history: Rows = field(default_factory=lambda: pa.table({STEP: pa.array([], pa.int64())}))

    @property
    def status(self) -> str:
        """`finished` and `collapsed` as the run says itself, else `unfinished`."""
        status = self.summary.get("run/status")
        return status if status in ("finished", "collapsed") else "unfinished"


def of_run_file(run: RunFile, source: str, stamp: str = "") -> Fragment:
    """The fragment that a run file is."""
    return with_history(
        Fragment(
            place=str(run.path),
            source=source,
            run_id=run.run_id,
            identified=run.identified,
            group=run.group,
            started=run.started,
            config=run.config,
            summary=run.summary,
            exit_code=run.exit_code,
            torn=run.torn_at is not None,
            stamp=stamp,
        ),
        run.history,
    )


def with_history(fragment: Fragment, table: pa.Table) -> Fragment:
    """The fragment with its rows, and what is said of a run without looking at them again."""
    steps = table[STEP].to_numpy()
    return replace(
        fragment,
        rows=len(steps),
        last_step=int(steps.max()) if len(steps) else None,
        forwards=_forwards(table),
        history=table,
    )


def _forwards(table: pa.Table) -> dict[int, float | None]:
    if EVALUATION not in table.column_names:
        return {}
    evaluated = np.flatnonzero(table[EVALUATION].is_valid().to_numpy())
    if table.schema.field(EVALUATION).type == pa.float64():
        evaluated = np.flatnonzero(~np.isnan(table[EVALUATION].to_numpy()))
    steps = table[STEP].to_numpy()[evaluated].tolist()
    numeric = FORWARDS in table.column_names and table.schema.field(FORWARDS).type == pa.float64()
    values = table[FORWARDS].to_numpy()[evaluated].tolist() if numeric else [None] * len(steps)
    return {s: None if v is None or v != v else v for s, v in zip(steps, values, strict=True)}


def write(fragment: Fragment, path: Path) -> Fragment:
    """Keep a fragment whose rows are in memory; the fragment with its rows on disk."""
    assert isinstance(fragment.history, pa.Table)
    said = {k: v for k, v in asdict(replace(fragment, history=path)).items() if k != "history"}
    metadata = {METADATA: json.dumps({"version": VERSION, **said}).encode()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    table = fragment.history.replace_schema_metadata(metadata)
    pq.write_table(table, partial, compression="zstd", use_dictionary=False)
    partial.replace(path)
    return replace(fragment, history=path)


def read(path: Path) -> Fragment | None:
    """A kept fragment, its rows left on disk; None if there is none, or one of another version."""
    try:
        metadata = pq.read_schema(path).metadata
    except (OSError, pa.ArrowInvalid):
        return None
    said = json.loads((metadata or {}).get(METADATA, b"{}"))
    if said.pop("version", None) != VERSION:
        return None
    said["forwards"] = {int(step): value for step, value in said["forwards"].items()}
    return Fragment(**said, history=path)
