"""Where runs come from: directories with W&B run files, projects at W&B's cloud, or both mixed.

    frames = load(["out", "entity/project"], CACHE)

A source is a directory if there is one of that name, else a project if it reads `entity/project`;
`wandb:entity/project` is a project in any case. A file that ends in `.parquet` holds committed runs
(`logs/committed.py`).
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from analysis.logs import cloud, committed, manifests
from analysis.logs.fragments import Fragment, read_changed, status_of
from analysis.logs.frames import Frames, merge
from analysis.logs.run_file import LogError, read_run_file

PROJECT = re.compile(r"(?:wandb:)?([\w.-]+/[\w.-]+)")
CACHE = Path(".cache/analysis")
RUN_DIRECTORY = re.compile(r"(offline-)?run-\d{8}_\d{6}-.+")  # not the symlink latest-run
PARALLEL_BYTES = 50e6  # less is read sooner than another process has started
FILES_PER_TASK = 4


def load(sources: Sequence[str | Path], cache_dir: Path) -> Frames:
    """All runs that some sources have; see `analysis.logs.frames` for what comes back.

    In `cache_dir` run files and W&B's answers are kept as parquet, so that only what has changed is read again.
    """
    directories, projects, files = split(sources)
    found = _read_files(directories, cache_dir)
    if projects:
        found += cloud.read(projects, cache_dir)
    written = (path for top in directories for path in top.rglob(f"{manifests.DIRECTORY}/*.jsonl"))
    frames = replace(merge(found), lines=list(manifests.read(written)))
    _say_unlogged(directories, found)
    return committed.merge([frames, *map(committed.read, files)]) if files else frames


def _read_files(directories: Sequence[Path], cache_dir: Path) -> list[Fragment]:
    """The fragments that the run files below some directories are, in the order of their paths."""
    sources: dict[Path, str] = {}
    for top in directories:
        for path in top.rglob("run-*.wandb"):
            if RUN_DIRECTORY.fullmatch(path.parent.name):
                sources.setdefault(path.resolve(), str(top))
    stats = {str(path): path.stat() for path in sorted(sources)}
    stamps = {path: f"{stat.st_size}:{stat.st_mtime_ns}" for path, stat in stats.items()}
    files, words = cache_dir / "files", "reading W&B run files"
    found = read_changed(stamps, read_run_file, files, _in_processes, words)
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


def _say_unlogged(directories: Sequence[Path], fragments: Sequence[Fragment]) -> None:
    """Name the runs that have ended, as they say themselves, but not in W&B's files: no table has them."""
    whole = [one for one in fragments if status_of(one.summary) != "unfinished"]
    ended = {one.run_id for one in whole}
    places = {Path(one.place).parents[2] for one in whole if not one.is_copy}  # copied, renamed
    said = {path.resolve() for top in directories for path in top.rglob("status.json")}
    unlogged = []
    for path in sorted(said):
        with suppress(ValueError):
            status = json.loads(path.read_text(encoding="utf-8")).get("run/status")
            known = path.parent.name in ended or path.parent in places
            if status in ("finished", "collapsed") and not known:
                unlogged.append(str(path.parent))
    first = " ".join(unlogged[:20]) + " ..." * (len(unlogged) > 20)
    if unlogged:
        what = f"{len(unlogged)} runs that have ended have no whole W&B file: lost, cut, or W&B was disabled"
        write = "zo log"
        print(f"{what}. No table has them. Write the files: {write} {first}", file=sys.stderr)


def split(sources: Sequence[str | Path]) -> tuple[list[Path], list[str], list[Path]]:
    """Which sources are directories, which projects, and which files of committed runs."""
    directories: list[Path] = []
    projects: list[str] = []
    files: list[Path] = []
    for source in sources:
        project = PROJECT.fullmatch(str(source))
        if Path(source).is_dir() and not str(source).startswith("wandb:"):
            directories.append(Path(source))
        elif Path(source).is_file() and Path(source).suffix == ".parquet":
            files.append(Path(source))
        elif project and not str(source).startswith("."):
            projects.append(project[1])
        else:
            raise LogError(f"there is no directory {source}")
    return directories, projects, files
