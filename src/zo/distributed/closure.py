"""A training loop of the user's own on several processes, each with its own part of the batch."""

from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from zo.distributed.agreement import check_same
from zo.distributed.loss import DividedLoss
from zo.distributed.processes import Processes
from zo.distributed.watch import Watch
from zo.optim.base import ZOOptimizer, number


class DataParallel:
    """Processes that train one model together.

    Args:
        group: The processes.
        check_every: Steps between comparisons of the weights; None compares them only at the start.

    Attributes:
        processes: Of the group.
    """

    def __init__(self, group: dist.ProcessGroup, check_every: int | None):
        self.processes = Processes(group)
        self._watch = Watch(self.processes, check_every)

    def begin(self, method: ZOOptimizer, settings: Mapping[str, Any]) -> None:
        """Compares settings and weights of all processes.

        Raises:
            ProcessesError: If they differ.
        """
        check_same(self.processes, settings, "give all processes the same")
        self._watch.compare(method)

    def loss(self, closure: Callable[[], Tensor | float]) -> DividedLoss:
        """Returns the loss of all parts of a batch, of which this process's is measured by a closure."""
        weights = [1] * self.processes.world
        return DividedLoss(
            lambda _: lambda: number(closure()), weights, self.processes, own_data=True
        )

    def after_step(self, method: ZOOptimizer) -> None:
        """Compares the weights if that is due.

        Raises:
            WeightsDifferError: If they differ.
        """
        self._watch.after_step(method)
