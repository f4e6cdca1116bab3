"""How processes share a run: settings, and variables of torchrun and Submitit. Imports no torch."""

import os
from dataclasses import dataclass
from typing import Annotated

from zo.optim.config import AutoCount, Settings, at_least, within

Parts = Annotated[int, within(1, 1024)]


@dataclass
class DistributedConfig(Settings):
    """How several processes share a run. The number of processes is not a setting: torchrun or SLURM gives it.

    Attributes:
        shards: Parts, ≥ 1, of a mini-batch. Each part is measured by forward passes of its own, on any process, and the
            losses are added in one order. It is part of the run's identity.
        tensor: Processes, ≥ 1, that hold a part of every tensor each, by transformers' tensor parallelism. Above 1 it
            is the number of processes. It changes the order of sums, so it is part of the identity, too.
        check_every: Steps between comparisons of the weights of all processes; None compares them only at the start.
        timeout: Seconds that a process waits for the others before it ends the run as interrupted.
    """

    shards: Parts = 1
    tensor: Parts = 1
    check_every: AutoCount = 100
    timeout: Annotated[float, at_least(1)] = 600.0


STARTED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun and Submitit set for each process."""


def started_together() -> bool:
    """Returns whether torchrun or Submitit started this process as one of several."""
    return all(name in os.environ for name in STARTED) and int(os.environ["WORLD_SIZE"]) > 1


def follows() -> bool:
    """Returns whether this process is not rank 0, which writes and reports the run."""
    return started_together() and int(os.environ["RANK"]) > 0


def local_rank() -> int:
    """Returns the position of this process on its machine, which chooses its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0")) if started_together() else 0
