"""A fragment: what one run file, or W&B's copy of a run, says of a run; and how fragments are kept on disk.

A kept fragment is one parquet file: the history as its rows, everything else as JSON in its metadata.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.logs.history import STEP, Rows
from zo.extras import progress

VERSION = 4
"""Raised when a kept fragment means something else than before; others are then read anew."""

METADATA = b"fragment"
ENDED = ("finished", "collapsed")
"""Statuses of a run that has its result."""


@dataclass
class Fragment:
    """One fragment of a run."""

    place: str  # path of the run file, or the run's place at W&B
    # as the configuration says, else W&B's id; of the file name if there is no run record
    run_id: str
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
    stamp: str = ""  # what tells whether the origin has changed since it was read
    is_copy: bool = False  # whether it is W&B's copy of a run rather than a run file
    # one row per history record, in the order of the file: `step` (int64), then the logged keys in alphabetical
    # order, float64, NaN where a row lacks one. A key that has other values than numbers is a column of JSON texts
    history: Rows = field(default_factory=lambda: pa.table({STEP: pa.array([], pa.int64())}))


def status_of(summary: Mapping[str, Any]) -> str:
    """`finished` and `collapsed` as the run says itself, else `unfinished`."""
    status = summary.get("run/status")
    return status if status in ENDED else "unfinished"


def read_changed(
    stamps: Mapping[str, str],
    read: Callable[[str], Fragment],
    directory: Path,
    mapped: Callable[..., Iterable[Fragment]],
    words: str,
) -> list[Fragment]:
    """The fragments of some origins: as they were kept in `directory`, or read and kept where the origin has changed.

    Each is kept as soon as it is read, so that what was interrupted goes on where it was. `stamps`: an origin's path or
    id -> what changes with it. `mapped` works as `map`, maybe several at a time; `words` are a progress bar's.
    """
    kept = {origin: _kept(_path(directory, origin), stamp) for origin, stamp in stamps.items()}
    stale = [origin for origin, fragment in kept.items() if fragment is None]
    read_one = partial(_read_and_keep, read, directory)
    fresh = mapped(read_one, stale, [stamps[origin] for origin in stale])
    kept |= zip(stale, progress(fresh, words, len(stale)), strict=True)
    return [fragment for fragment in kept.values() if fragment]


def _read_and_keep(
    read: Callable[[str], Fragment], directory: Path, origin: str, stamp: str
) -> Fragment:
    """Read one origin, and leave its rows on disk."""
    fragment, path = replace(read(origin), stamp=stamp), _path(directory, origin)
    assert isinstance(fragment.history, pa.Table)
    said = {key: value for key, value in vars(fragment).items() if key != "history"}
    metadata = {METADATA: json.dumps({"version": VERSION, **said}).encode()}
    table = fragment.history.replace_schema_metadata(metadata)
    with whole(path) as unfinished:
        pq.write_table(table, unfinished, compression="zstd", use_dictionary=False)
    return replace(fragment, history=path)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write a file, which then replaces the one at `path`: nobody reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.partial")
    yield unfinished
    unfinished.replace(path)


def _path(directory: Path, origin: str) -> Path:
    """Where the fragment of an origin is kept."""
    return directory / f"{hashlib.sha256(os.fsencode(origin)).hexdigest()[:24]}.parquet"


def _kept(path: Path, stamp: str) -> Fragment | None:
    """A kept fragment, its rows left on disk; None if there is none, or one of another version or state."""
    try:
        metadata = pq.read_schema(path).metadata
    except (OSError, pa.ArrowInvalid):
        return None
    said = json.loads((metadata or {}).get(METADATA, b"{}"))
    if said.pop("version", None) != VERSION or said["stamp"] != stamp:
        return None
    return Fragment(**said, history=path)
