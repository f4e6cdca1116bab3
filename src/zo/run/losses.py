"""The loss of one mini-batch, timed, and in the parts that several processes divide."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from zo.distributed.loss import DividedLoss
from zo.distributed.processes import Processes
from zo.tasks import Encoded
from zo.weights.space import ParameterSpace


@dataclass
class BatchLoss:
    """The loss of one mini-batch at the current θ, as a number and with its gradient.

    Attributes:
        scorer: What computes it.
        batch: The mini-batch, built once for all forward passes of a step.
        params: θ, which takes the time.
    """

    scorer: Any
    batch: Any
    params: ParameterSpace

    def __call__(self) -> float:
        """Returns the loss, without a gradient."""
        with self.params.measuring():
            return self.scorer.loss(self.batch)

    def branches(self, n: int) -> list[float]:
        """Returns the losses of n copies of the mini-batch that go through the model together."""
        with self.params.measuring():
            return self.scorer.branches(self.batch, n)

    def backward(self) -> float:
        """Returns the loss and adds its gradient to `grad` of the parameters."""
        with self.params.measuring():
            loss = self.scorer.differentiable_loss(self.batch)
            loss.backward()
            return loss.item()


@dataclass
class TensorParallelLoss(BatchLoss):
    """The loss of one mini-batch that all processes compute together, each with its part of the weights.

    Attributes:
        processes: All take the number of process 0: other kinds of GPU may round otherwise.
    """

    processes: Processes = field(default_factory=Processes)

    def __call__(self) -> float:
        """Returns the loss, without a gradient."""
        return self.processes.gather([super().__call__()])[0][0]


class ShardedLoss(DividedLoss):
    """The loss of a mini-batch in equal parts, whose forward passes processes divide."""

    def __init__(
        self,
        scorer: Any,
        examples: Sequence[Encoded],
        shards: int,
        params: ParameterSpace,
        processes: Processes,
    ):
        size = len(examples) // shards
        parts = [examples[first : first + size] for first in range(0, len(examples), size)]
        built: dict[int, BatchLoss] = {}

        def part(shard: int) -> BatchLoss:
            if shard not in built:
                built[shard] = BatchLoss(scorer, scorer.collate(parts[shard]), params)
            return built[shard]

        super().__init__(part, [scorer.share(of) for of in parts], processes)
