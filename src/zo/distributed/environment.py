"""The environment variables of torchrun, and of Submitit under SLURM. Imports no torch."""

import os

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
