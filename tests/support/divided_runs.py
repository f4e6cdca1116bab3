"""Runs on several processes, some of which are killed or see other things than the rest."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.support.crowd import environment, free_port
from tests.support.victims import At, start
from zo.config import RunConfig
from zo.distributed.processes import Processes
from zo.lm.config import ModelError
from zo.run import runner, together
from zo.run.assembly import Session
from zo.weights.space import ParameterSpace

NOBODY: Mapping[int, tuple[At, ...]] = {}


def exit_statuses(
    directory: Path,
    world: int,
    points: Mapping[int, tuple[At, ...]] = NOBODY,
    timeout_s: float = 120,
    after: Callable[[list[Any]], None] = lambda started: None,
) -> list[int | None]:
    """Continues a run on so many processes, some of which send themselves signals; returns their exit statuses.

    A process that does not end in time has none. `after` is called once all have started.
    """
    port = free_port()
    started = [
        start(directory, *points.get(rank, ()), env=environment(rank, world, port))
        for rank in range(world)
    ]
    deadline = time.monotonic() + timeout_s
    try:
        after(started)
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
        return [process.exitcode for process in started]
    finally:
        for process in started:
            process.kill()
            process.join()


def told_by(processes: Processes, cfg: RunConfig, sabotage: str = "") -> Any:
    """Makes a run after process 1 was sabotaged; returns its status, or the sentence that stopped it."""
    if processes.rank == 1 and sabotage:
        SABOTAGE[sabotage](cfg)
    try:
        return runner.run(cfg)["run/status"]
    except runner.UNUSABLE as error:
        return str(error)
    except SystemExit as stopped:
        return stopped.code


def _third_update(number: int, spoil: Callable[[Tensor], Any]) -> Callable[[RunConfig], None]:
    """Returns what has the third update spoil a tensor, of which `spoil` gets the values."""

    def arm(_: RunConfig) -> None:
        calls: list[int] = []
        carry_out = ParameterSpace.carry_out

        def spoiling(self: ParameterSpace, *args: Any) -> None:
            carry_out(self, *args)
            calls.append(1)
            if len(calls) == 3:
                spoil(self.tensors[number].view(-1))

        ParameterSpace.carry_out = spoiling  # type: ignore[method-assign]

    return arm


def _refuse(cfg: RunConfig) -> None:
    raise ModelError("model.path: it is not there")


SABOTAGE: dict[str, Callable[[RunConfig], None]] = {
    "a flipped bit": _third_update(4, lambda w: w.view(torch.int32)[5:6].bitwise_xor_(1)),
    "an infinite weight": _third_update(0, lambda w: w[-1:].fill_(torch.inf)),
    "another rate": lambda cfg: setattr(cfg, "lr", 2 * (cfg.lr or 0)),
    "other code": lambda _: setattr(together, "code_digest", lambda: "other"),
    "another device": lambda _: setattr(together, "device_name", lambda device: "another GPU"),
    "no directory": lambda _: setattr(runner, "CONFIG", "not-there"),
    "no model": lambda _: setattr(Session, "open", _refuse),
}
"""What is wrong on process 1."""
