"""How processes share a run: settings, and variables of torchrun and Submitit. Imports no torch."""

import os
from dataclasses import dataclass


@dataclass
class DistributedConfig:
    """How several processes share a run. The number of processes is not a setting: torchrun or SLURM gives it.

    Attributes:
        shards: Parts, ≥ 1, of a mini-batch. Each part is measured by forward passes of its own, on any process, and the
            losses are added in one order. It is part of the run's identity.
        tensor: Processes, ≥ 1, that hold a part of every tensor each, by transformers' tensor parallelism. Above 1 it
            is the number of processes. It changes the order of sums, so it is part of the identity, too.
        check_every: Steps between comparisons of the weights of all processes; None compares them only at the start.
        timeout: Seconds that a process waits for the others before it ends the run as interrupted.
    """

    shards: int = 1
    tensor: int = 1
    check_every: int | None = 100
    timeout: float = 600.0

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, valid range) of each invalid value."""
        every = self.check_every
        checks = (
            ("shards", 1 <= self.shards <= 1024, "must be 1 to 1024"),
            ("tensor", 1 <= self.tensor <= 1024, "must be 1 to 1024"),
            ("check_every", every is None or every >= 1, "must be at least 1, or null"),
            ("timeout", self.timeout >= 1, "must be at least 1 second"),
        )
        return [(key, right) for key, ok, right in checks if not ok]


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
