"""Runs in processes of their own that are really killed, at a chosen call of a chosen function."""

import importlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.forkserver import preloaded_context
from zo.run.rows import read_rows
from zo.run.tracking import read_status

TIMED = ("time/", "mem/", "dist/")
FINAL = "final.json"


class At(NamedTuple):
    """Where in its work a process sends itself a signal.

    Attributes:
        target: Function of zo or of the standard library, as `zo.run.losses:BatchLoss.backward`.
        call: Which call of it, from 1.
        when: before, after, or when half of the bytes that it is to write are written.
        number: The signal.
    """

    target: str
    call: int = 1
    when: str = "before"
    number: int = signal.SIGKILL


def attempt(directory: str, log: str, points: tuple[At, ...], env: dict[str, str]) -> None:
    """Continues a run and gets a signal at each of the points; to be called in a process of its own."""
    os.environ.update(env)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    for point in points:
        _arm(point)
    sys.exit(here(Path(directory)))


def here(directory: Path) -> int:
    """Continues a run in this process; returns its exit status, and notes the hash of θ at the run's end."""
    from zo.run import __main__ as command
    from zo.run import runner

    train = runner.train

    def noting(cfg: Any, session: Any, *rest: Any) -> Any:
        summary = train(cfg, session, *rest)
        final = session.assembly.weights_hash()  # all processes put sharded tensors together
        if session.processes.leads:
            (directory / FINAL).write_text(final)
        return summary

    runner.train = noting
    try:
        return command.main([str(directory)])
    finally:
        runner.train = train


def _arm(point: At) -> None:
    module, _, path = point.target.partition(":")
    *owners, name = path.split(".")
    owner = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    function: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def armed(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != point.call:
            return function(*args, **kwargs)
        if point.when == "half":
            function(args[0], args[1][: len(args[1]) // 2])
        result = function(*args, **kwargs) if point.when == "after" else None
        os.kill(os.getpid(), point.number)
        return function(*args, **kwargs) if point.when == "before" else result

    setattr(owner, name, armed)


def start(
    directory: Path, *points: At, env: dict[str, str] | None = None
) -> multiprocessing.Process:
    """Starts a process that continues the run in a directory; its output goes to log.txt there."""
    process = preloaded_context().Process(
        target=attempt, args=(str(directory), str(directory / "log.txt"), points, env or {})
    )
    process.start()
    return process


def what_it_came_to(directory: Path) -> dict[str, Any]:
    """All of a run that must not depend on how often it was interrupted."""

    def untimed(data: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in data.items() if not key.startswith(TIMED)}

    def raw(name: str) -> bytes | None:
        return (directory / name).read_bytes() if (directory / name).exists() else None

    return {
        "history": [untimed(row) for row in read_rows(directory)],
        "summary": untimed(read_status(directory)),
        "predictions": json.loads(raw("predictions.json") or b"{}"),
        "trajectory": raw("trajectory.bin"),
        "weights": raw(FINAL),
        "leftovers": sorted(path.name for path in directory.glob(".*"))
        + sorted(path.name for path in directory.glob("checkpoints/*")),
    }
