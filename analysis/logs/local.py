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
        for directory, _, files in os.walk(top):  # follows no symlinks
            if RUN_DIRECTORY.fullmatch(Path(directory).name):
                names = [f for f in files if f.startswith("run-") and f.endswith(".wandb")]
                for name in names:
                    found.setdefault((Path(directory) / name).resolve(), str(top))
    return found


def read(
    directories: Iterable[Path], cache_dir: Path | None, jobs: int | None = None
) -> list[Fragment]:
    """The fragments that the run files below some directories are, in the order of their paths.

    Args:
        directories: where to look.
        cache_dir: where fragments are kept; None keeps them, with all their rows, in memory.
        jobs: processes; None for as many as there are processors.
    """
    found = _found(directories)
    fresh: dict[Path, Fragment] = {}
    stale: list[tuple[Path, str, str, Path | None]] = []
    for path, source in sorted(found.items()):
        stat = path.stat()
        stamp = f"{stat.st_size}:{stat.st_mtime_ns}"
        kept = None if cache_dir is None else kept_at(cache_dir / "files", str(path))
        fragment = None if kept is None else fragments.read(kept)
        if fragment is not None and fragment.stamp == stamp:
            fresh[path] = replace(fragment, source=source)
        else:
            stale.append((path, source, stamp, kept))
    read_now = _fragments(stale, min(jobs or os.cpu_count() or 1, len(stale)))
    for fragment in progress(read_now, "reading W&B run files", len(stale)):
        fresh[Path(fragment.place)] = fragment
    if stale and cache_dir is not None:
        _forget_removed(cache_dir, {kept_at(cache_dir / "files", str(path)) for path in found})
    return [fresh[path] for path in sorted(found)]


def _forget_removed(cache_dir: Path, in_use: set[Path]) -> None:
    """Remove what is kept of run files that are not there any more."""
    for kept in (cache_dir / "files").glob("*.parquet"):
        if kept not in in_use:
            fragment = fragments.read(kept)
            if fragment is None or not Path(fragment.place).exists():
                kept.unlink(missing_ok=True)


def _fragments(tasks: list[tuple[Path, str, str, Path | None]], jobs: int) -> Iterator[Fragment]:
    """Read run files; several processes share the work if it is worth their start."""
    if jobs <= 1 or sum(path.stat().st_size for path, *_ in tasks) < PARALLEL_BYTES:
        yield from map(_read_one, tasks)
        return
    context = get_context("spawn")  # a fork may hang: pyarrow has threads
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            yield from pool.map(_read_one, tasks, chunksize=FILES_PER_TASK)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _read_one(task: tuple[Path, str, str, Path | None]) -> Fragment:
    path, source, stamp, kept = task
    fragment = replace(read_run_file(path), source=source, stamp=stamp)
    return fragment if kept is None else fragments.write(fragment, kept)
