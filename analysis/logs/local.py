"""Run files below directories, read in parallel, each only once: what was read is kept until the file changes."""

import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from analysis.logs import fragments
from analysis.logs.fragments import Fragment, kept_at
from analysis.logs.progress import progress
from analysis.logs.run_file import LogError, read_run_file

RUN_DIRECTORY = re.compile(r"(offline-)?run-\d{8}_\d{6}-.+")  # not the symlink latest-run
PARALLEL_BYTES = 50e6  # less is read sooner than another process has started
FILES_PER_TASK = 4


def _found(directories: Iterable[Path]) -> dict[Path, str]:
    """Each W&B run file, of runs logged online, too, and the first of the directories below which it lies."""
    found: dict[Path, str] = {}
    for top in directories:
        if not top.is_dir():
            raise LogError(f"there is no directory {top}")
        for path in top.rglob("run-*.wandb"):
            if RUN_DIRECTORY.fullmatch(path.parent.name):
                found.setdefault(path.resolve(), str(top))
    return found


def read(directories: Iterable[Path], cache_dir: Path | None) -> list[Fragment]:
    """The fragments that the run files below some directories are, in the order of their paths.

    Args:
        directories: where to look.
        cache_dir: where fragments are kept; None keeps them, with all their rows, in memory.
    """
    found = _found(directories)
    files = None if cache_dir is None else cache_dir / "files"
    fresh: dict[Path, Fragment] = {}
    stale: list[tuple[Path, str, str, Path | None]] = []
    for path, source in sorted(found.items()):
        stat = path.stat()
        stamp = f"{stat.st_size}:{stat.st_mtime_ns}"
        kept = kept_at(files, str(path))
        fragment = fragments.read(kept)
        if fragment is not None and fragment.stamp == stamp:
            fresh[path] = replace(fragment, source=source)
        else:
            stale.append((path, source, stamp, kept))
    for fragment in progress(_fragments(stale), "reading W&B run files", len(stale)):
        fresh[Path(fragment.place)] = fragment
    return [fresh[path] for path in sorted(found)]


def _fragments(tasks: list[tuple[Path, str, str, Path | None]]) -> Iterator[Fragment]:
    """Read run files; several processes share the work if it is worth their start."""
    jobs = min(os.cpu_count() or 1, len(tasks))
    if jobs <= 1 or sum(path.stat().st_size for path, *_ in tasks) < PARALLEL_BYTES:
        yield from map(_read_one, tasks)
        return
    context = get_context("spawn")  # a fork may hang: pyarrow has threads
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield from pool.map(_read_one, tasks, chunksize=FILES_PER_TASK)


def _read_one(task: tuple[Path, str, str, Path | None]) -> Fragment:
    path, source, stamp, kept = task
    return fragments.write(replace(read_run_file(path), source=source, stamp=stamp), kept)
