"""The processes of a training, and their collectives.

Losses are Python floats on the host, so that gloo carries them, also between processes with GPUs.
"""

import atexit
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zo.distributed.config import started_together


class ProcessesError(ValueError):
    """Processes that cannot make a run together; one sentence that says why."""


class ProcessLostError(RuntimeError):
    """Another process ended, or did not answer in time."""


class Processes:
    """The processes of a training; without a group there is one.

    Args:
        group: A process group; the current GPU carries the losses if its backend is NCCL, else the host.

    Attributes:
        rank: Of this process, from 0.
        world: Number of processes.
        seconds: Time that this process spent in exchanges of losses, waiting included.
        exchanging: Part of it, the time that the last process to arrive spent; known one exchange later.
        bytes: Length of the losses that all processes sent each other.
    """

    def __init__(self, group: dist.ProcessGroup | None = None):
        self._group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.world = 1 if group is None else dist.get_world_size(group)
        self.seconds = self.exchanging = self._last = 0.0
        self.bytes = 0
        nccl = group is not None and dist.get_backend(group) == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if nccl else None

    @property
    def leads(self) -> bool:
        """Whether this process writes the run's directory."""
        return self.rank == 0

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Returns the values of each process, in the order of ranks; all give equally many (collective).

        Raises:
            ProcessLostError: If a process ended or did not answer in time.
        """
        if self.world == 1:
            return [list(values)]
        start = time.perf_counter()
        mine = torch.tensor([*values, self._last], dtype=torch.float64, device=self._device)
        tensors = [torch.empty_like(mine) for _ in range(self.world)]
        with _lost():
            dist.all_gather(tensors, mine, group=self._group)
        found = [of_one.tolist() for of_one in tensors]
        self.exchanging += min(of_one.pop() for of_one in found)
        self._last = time.perf_counter() - start
        self.seconds += self._last
        self.bytes += self.world * 8 * len(values)
        return found

    def exchange(self, value: Any) -> list[Any]:
        """Returns the value of each process, in the order of ranks: any that pickle supports (collective).

        Raises:
            ProcessLostError: If a process ended or did not answer in time.
        """
        found: list[Any] = [value]
        if self.world > 1:
            found = [None] * self.world
            with _lost():
                dist.all_gather_object(found, value, group=self._group)
        return found

    def divide(
        self,
        groups: Sequence[Sequence[int]],
        measure: Callable[[int], Tensor],
        progress: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Returns a row of numbers per example, in the order of examples; groups of examples are divided.

        Args:
            groups: Indices of the examples that are measured together; every index once.
            measure: Returns the rows of a group, by its position among the groups.
            progress: Called with the number of examples that all processes just measured.

        Raises:
            ProcessesError: If another process could not measure its examples.
            ProcessLostError: If a process ended or did not answer in time.
        """
        mine = []
        with self.together():
            for turn in range(0, len(groups), self.world):
                if turn + self.rank < len(groups):
                    mine.append(measure(turn + self.rank).cpu())
                if progress is not None:
                    progress(sum(map(len, groups[turn : turn + self.world])))
        order = [i for rank in range(self.world) for of in groups[rank :: self.world] for i in of]
        found = torch.cat([rows for of_one in self.exchange(mine) for rows in of_one])
        rows = torch.empty_like(found)
        rows[order] = found
        return rows

    @contextmanager
    def together(self) -> Iterator[None]:
        """Runs the body on every process; where it raises on one, all raise.

        Raises:
            ProcessesError: If it raised on another process, with the sentence of that error.
        """
        try:
            yield
        except Exception as error:
            self.exchange(f"{type(error).__name__}: {error}")
            raise
        for rank, problem in enumerate(self.exchange(None)):
            if problem is not None:
                raise ProcessesError(f"process {rank}: {problem}")


def is_loss(error: RuntimeError) -> bool:
    """Whether an error comes from a collective that lost a process; gloo's have no class of their own."""
    return isinstance(error, dist.DistError | ProcessLostError) or "gloo/transport" in str(error)


@contextmanager
def _lost() -> Iterator[None]:
    """Raises ProcessLostError for a collective's own errors."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessLostError(
            "another process ended or did not answer in time; see its own last lines"
        ) from error


def join(timeout: float, tensors: bool = False) -> Processes:
    """Returns the processes that were started together with this one.

    Args:
        timeout: Seconds that a process waits for the others.
        tensors: Whether they exchange parts of tensors, too: on GPUs by NCCL.

    Raises:
        ProcessesError: If the port is taken.
        ProcessLostError: If they do not find one another in time.
    """
    if not started_together():
        return Processes()
    if not dist.is_initialized():
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        try:
            backend = "cpu:gloo,cuda:nccl" if tensors and torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        except (dist.DistError, RuntimeError, ValueError) as error:
            here, why = f"{socket.gethostname()}: no connection at {where}", str(error)
            if "EADDRINUSE" in why:
                taken = "the port is taken; give torchrun another --master-port"
                raise ProcessesError(f"{here}: {taken}") from None
            raise ProcessLostError(f"{here}: {why.splitlines()[0]}") from None
        atexit.register(dist.destroy_process_group)
    return Processes(dist.group.WORLD)
