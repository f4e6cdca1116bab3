"""The weights of all processes, compared as a training goes on."""

from dataclasses import dataclass

from torch import Tensor

from zo.distributed.agreement import check_weights
from zo.distributed.processes import Processes
from zo.optim.base import ZOOptimizer


@dataclass
class Watch:
    """Compares the weights of all processes every so many steps.

    Attributes:
        processes: All make the same calls.
        every: Steps; None never.
        agreed: The last step after which they were the same.
    """

    processes: Processes
    every: int | None
    agreed: int = 0

    def compare(self, optimizer: ZOOptimizer) -> None:
        """Compares them now.

        Raises:
            WeightsDifferError: If they differ.
        """
        names, tensors = watched(optimizer)
        check_weights(self.processes, names, tensors, optimizer.step_index, self.agreed)
        self.agreed = optimizer.step_index

    def after_step(self, optimizer: ZOOptimizer) -> None:
        """Compares them if that is due.

        Raises:
            WeightsDifferError: If they differ.
        """
        if self.processes.world > 1 and self.every and optimizer.step_index % self.every == 0:
            self.compare(optimizer)


def watched(optimizer: ZOOptimizer) -> tuple[list[str], list[Tensor]]:
    """Returns names and tensors of the weights and of all state that the next step depends on."""
    names, tensors = optimizer.params.parts()
    for name, of in optimizer.state.items():
        names = [*names, *(f"{name}[{i}]" for i in range(len(of)))]
        tensors = [*tensors, *of]
    return names, tensors
