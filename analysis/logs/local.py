"""Run files below directories, read in parallel, each only once: what was read is kept until the file changes."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from analysis.logs.fragments import Fragment, read_changed
from analysis.logs.run_file import read_run_file

RUN_DIRECTORY = re.compile(r"(offline-)?run-\d{8}_\d{6}-.+")  # not the symlink latest-run
PARALLEL_BYTES = 50e6  # less is read sooner than another process has started
FILES_PER_TASK = 4


def read(directories: Iterable[Path], cache_dir: Path | None) -> list[Fragment]:
    """The fragments that the run files below some directories are, in the order of their paths.

    Args:
        directories: where to look.
        cache_dir: where fragments are kept; None keeps them, with all their rows, in memory.
    """
    sources: dict[Path, str] = {}
    for top in directories:
        for path in top.rglob("run-*.wandb"):
            if RUN_DIRECTORY.fullmatch(path.parent.name):
                sources.setdefault(path.resolve(), str(top))
    stats = {str(path): path.stat() for path in sorted(sources)}
    stamps = {path: f"{stat.st_size}:{stat.st_mtime_ns}" for path, stat in stats.items()}
    files = None if cache_dir is None else cache_dir / "files"
    found = read_changed(stamps, read_run_file, files, _in_processes, "reading W&B run files")
    return [replace(fragment, source=sources[Path(fragment.place)]) for fragment in found]


def _in_processes(
    read_one: Callable[..., Fragment], paths: list[str], *given: list[Any]
) -> Iterator[Fragment]:
    """As `map`; several processes share the work if it is worth their start."""
    jobs = min(os.cpu_count() or 1, len(paths))
    if jobs <= 1 or sum(Path(path).stat().st_size for path in paths) < PARALLEL_BYTES:
        yield from map(read_one, paths, *given)
        return
    context = get_context("spawn")  # a fork may hang: pyarrow has threads
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield from pool.map(read_one, paths, *given, chunksize=FILES_PER_TASK)
