"""A training loop of the user's own, on one process or several, which make a step together."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from zo.distributed.agreement import Watch, check_same
from zo.distributed.executor import AgreedLoss, DividedExecutor
from zo.distributed.processes import Processes
from zo.optim.base import ZOOptimizer
from zo.weights.executor import Executor
from zo.weights.loss import Loss
from zo.weights.sharded import part_of

SAME = 1e-6
"""Relative difference of two losses at the same weights that an order of summation explains."""


class StepProcesses:
    """The processes that make the steps of a training, and what each measures.

    Those of a group each measure their own part of a mini-batch; the step's loss is the mean. Those that hold parts of
    the same tensors measure the same mini-batch. Any other process is alone.

    Args:
        method: What makes the steps.
        group: Processes with parts of a mini-batch, if there are any.
        check_every: Steps between comparisons of a group's weights; None compares them only at the start.
        settings: Of the training.

    Attributes:
        processes: Of the training.
        watch: Compares weights after steps.

    Raises:
        ProcessesError: If settings or weights differ.
    """

    def __init__(
        self,
        method: ZOOptimizer,
        group: dist.ProcessGroup | None,
        check_every: int | None,
        settings: Mapping[str, Any],
    ):
        self._grouped, self._sharded = group is not None, bool(method.params.shards)
        if self._sharded and group is None:
            tensors: list[Any] = method.params.parameters
            mesh = next(t.device_mesh for t in tensors if part_of(t)[1] is not None)
            group = mesh.get_group() if mesh.ndim == 1 else dist.group.WORLD
        self.processes = Processes(group)
        # of sharded weights, each process holds other values
        self.watch = Watch(self.processes, None if self._sharded else check_every)
        check_same(self.processes, settings, "give all processes the same")
        if self._grouped and not self._sharded:
            self.watch.compare(method)

    def executor(self, loss: Loss) -> Executor:
        """Returns what makes the forward passes of a step; losses of one mini-batch that differ are an error."""
        if self._grouped:
            shares = [1] * self.processes.world
            return DividedExecutor(lambda _: loss, shares, self.processes, own_data=True)
        return Executor(AgreedLoss(loss, self.processes, SAME) if self._sharded else loss)
