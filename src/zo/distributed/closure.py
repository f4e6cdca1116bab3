"""A training loop of the user's own on several processes, whose step they divide."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch.distributed as dist

from zo.distributed.agreement import Watch, check_same
from zo.distributed.loss import AgreedLoss, DividedLoss
from zo.distributed.processes import Processes
from zo.optim.base import StepInfo, ZOOptimizer
from zo.optim.losses import CountedLoss
from zo.weights.loss import Context, LossFn
from zo.weights.sharded import part_of

SAME = 1e-6
"""Relative difference of two losses at the same weights that an order of summation explains."""


class ParallelStep(ABC):
    """How the processes of a training make a step.

    Attributes:
        processes: Of the training.
    """

    processes: Processes

    @abstractmethod
    def step(self, method: ZOOptimizer, closure: LossFn, context: Context) -> StepInfo:
        """Makes a step.

        Raises:
            ProcessLostError: If a process without which it cannot go on ended or did not answer in time.
            WeightsDifferError: If the weights differ.
        """

    def checking(self) -> AbstractContextManager[None]:
        """Returns a context in which each process checks something; where it fails on one, it fails on all."""
        return self.processes.together()


class DataParallel(ParallelStep):
    """Processes that are the same from the start to the end, each with its own part of a mini-batch.

    Args:
        group: The processes.
        check_every: Steps between comparisons of the weights; None compares them only at the start.
        method: What makes the steps.
        settings: Of the training.

    Raises:
        ProcessesError: If settings or weights differ.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        check_every: int | None,
        method: ZOOptimizer,
        settings: Mapping[str, Any],
    ):
        self.processes = Processes(group)
        sharded = bool(method.params.shards)  # each process holds other values then
        self._watch = Watch(self.processes, None if sharded else check_every)
        check_same(self.processes, settings, "give all processes the same")
        if not sharded:
            self._watch.compare(method)

    def step(self, method: ZOOptimizer, closure: LossFn, context: Context) -> StepInfo:
        """As `ParallelStep.step`; the step's loss is the mean of the parts."""
        part = CountedLoss(closure, context)
        given = getattr(closure, "mean_square", None)
        loss = DividedLoss(
            lambda _: part,
            [1] * self.processes.world,
            self.processes,
            own_data=True,
            squares=None if given is None else lambda: [part.mean_square()],
        )
        info = method.step(loss)
        self._watch.after_step(method)
        return info


class TensorParallel(ParallelStep):
    """Processes that hold parts of the same tensors and measure the same mini-batch.

    Args:
        method: What makes the steps.
        settings: Of the training.

    Raises:
        ProcessesError: If settings differ.
    """

    def __init__(self, method: ZOOptimizer, settings: Mapping[str, Any]):
        tensors: list[Any] = method.params.parameters
        mesh = next(t.device_mesh for t in tensors if part_of(t)[1] is not None)
        self.processes = Processes(mesh.get_group() if mesh.ndim == 1 else dist.group.WORLD)
        check_same(self.processes, settings, "give all processes the same")

    def step(self, method: ZOOptimizer, closure: LossFn, context: Context) -> StepInfo:
        """As `ParallelStep.step`.

        Raises:
            ProcessesError: If the losses differ by more than rounding.
        """
        loss = AgreedLoss(CountedLoss(closure, context), self.processes, SAME)
        return method.step(loss)
