"""Runs in processes of their own that are really killed, at a chosen call of a chosen function, and damaged files."""

import itertools
import os
import pkgutil
import random
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tests.support.crowd import environments, free_port, preloaded_context
from zo.run.__main__ import main
from zo.run.logs.tracking import read_status
from zo.run.store.directory import Inputs
from zo.run.store.rows import read_rows

KILLED = -signal.SIGKILL
TIMED = ("time/", "mem/", "dist/")


class At(NamedTuple):
    """Where in its work a process sends itself a signal."""

    target: str  # function of zo or of the standard library
    call: int = 1  # which one of it
    when: str = "before"  # or after, or when half of the bytes that it is to write are written
    number: int = signal.SIGKILL


def exit_statuses(
    directory: Path,
    world: int = 1,
    points: Mapping[int, At] | None = None,
    timeout_s: float = 300,
    rest_s: float = 60,
) -> list[int | None]:
    """Continues a run, with its output in log.txt; returns the exit statuses of its processes.

    One that does not end in time has none: the first in `timeout_s`, each other one in `rest_s` more.
    """
    context, started = preloaded_context(), []
    for rank, env in enumerate(environments(world, free_port())):
        given = (directory, (points or {}).get(rank), env)
        started.append(context.Process(target=_continue, args=given))
        started[-1].start()
    try:
        for rank, process in enumerate(started):
            process.join(rest_s if rank else timeout_s)
        return [process.exitcode for process in started]
    finally:
        for process in started:
            process.kill()
            process.join()


def _continue(directory: Path, point: At | None, env: dict[str, str]) -> None:
    os.environ.update(env)
    sys.stdout = sys.stderr = (directory / "log.txt").open("a", buffering=1)
    if point is not None:
        armed(point).start()
    sys.exit(main([str(directory)]))


def armed(point: At) -> Any:
    """Returns a context manager, in which this process sends itself the signal."""
    function, calls = pkgutil.resolve_name(point.target), itertools.count(1)

    def sending(*args: Any, **kwargs: Any) -> Any:
        if next(calls) != point.call:
            return function(*args, **kwargs)
        if point.when == "half":
            function(args[0], args[1][: len(args[1]) // 2])
        result = function(*args, **kwargs) if point.when == "after" else None
        os.kill(os.getpid(), point.number)
        return function(*args, **kwargs) if point.when == "before" else result

    return mock.patch(point.target, sending)


def what_it_came_to(directory: Path) -> dict[str, Any]:
    """All of a run that must not depend on how often it was interrupted."""

    def untimed(data: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in data.items() if not key.startswith(TIMED)}

    written = [directory / name for name in ("predictions.csv", "trajectory.bin")]
    left = [*directory.glob(".*"), *directory.glob("checkpoints/*")]
    return {
        "history": [untimed(row) for row in read_rows(directory)],
        "summary": untimed(read_status(directory)),
        "inputs": Inputs.load(directory),
        "leftovers": sorted(path.name for path in left),
        **{path.name: path.read_bytes() for path in written if path.exists()},
    }


def flip_bit(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    bit = rng.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def truncate(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])
