"""Runs on two processes, one of which sees other things than the other."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zo.config import RunConfig
from zo.distributed.processes import Processes
from zo.lm.config import ModelError
from zo.run import dist_checks, runner
from zo.run.assembly import Session
from zo.run.command import Shared
from zo.weights.space import ParameterSpace


def told_by(processes: Processes, cfg: RunConfig, sabotage: str = "") -> Any:
    """Makes a run after process 1 was sabotaged; returns its status, or the sentence that stopped it."""
    if processes.rank == 1 and sabotage:
        SABOTAGE[sabotage](cfg)
    try:
        return runner.run(cfg)["run/status"]
    except runner.UNUSABLE as error:
        return str(error)


def _third_update(number: int, spoil: Callable[[Tensor], Any]) -> Callable[[RunConfig], None]:
    """Returns what has the third update spoil a tensor, of which `spoil` gets the values."""
    apply_update, calls = ParameterSpace.apply_update, itertools.count(1)

    def spoiling(self: ParameterSpace, *args: Any) -> None:
        apply_update(self, *args)
        if next(calls) == 3:
            spoil(self.local[number].view(-1))

    return lambda _: setattr(ParameterSpace, "apply_update", spoiling)


def _refuse(cfg: RunConfig, scratch: Path, shared: Shared) -> None:
    raise ModelError("model.path: it is not there")


SABOTAGE: dict[str, Callable[[RunConfig], None]] = {
    "a flipped bit": _third_update(4, lambda w: w.view(torch.int32)[5:6].bitwise_xor_(1)),
    "an infinite weight": _third_update(0, lambda w: w[-1:].fill_(torch.inf)),
    "another rate": lambda cfg: setattr(cfg, "lr", 2 * (cfg.lr or 0)),
    "other code": lambda _: setattr(dist_checks, "code_digest", lambda: "other"),
    "another device": lambda _: setattr(dist_checks, "device_name", lambda device: "another GPU"),
    "no directory": lambda _: setattr(runner, "CONFIG", "not-there"),
    "no model": lambda _: setattr(Session, "open", _refuse),
}
"""What is wrong on process 1."""
