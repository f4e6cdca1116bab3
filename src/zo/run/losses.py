"""The loss of one mini-batch, timed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zo.distributed.executor import DividedExecutor
from zo.distributed.processes import Processes
from zo.tasks import Encoded
from zo.weights.loss import Loss
from zo.weights.space import ParameterSpace


@dataclass
class BatchLoss(Loss):
    """The loss of one mini-batch at the current θ, as a number and with its gradient."""

    branched = True

    scorer: Any  # What computes it
    batch: Any  # The mini-batch, built once for all forward passes of a step
    params: ParameterSpace  # θ, which takes the time

    def __call__(self) -> float:
        """Returns the loss, without a gradient."""
        with self.params.stopwatch.running("loss"):
            return self.scorer.loss(self.batch)

    def squares(self) -> list[float]:
        """As `Loss.squares`, of a scorer that rates texts."""
        return self.scorer.squares()

    def branches(self, n: int) -> list[float]:
        """Returns the losses of n copies of the mini-batch that go through the model together."""
        with self.params.stopwatch.running("loss"):
            return self.scorer.branches(self.batch, n)

    def branch_bytes(self, own: bool) -> int:
        """Returns about the most bytes that a copy of the mini-batch takes."""
        if own or self.scorer.writes:
            return self.scorer.branch_bytes(self.batch)
        return 0  # points that share their right factors go together, as ever

    def backward(self) -> float:
        """Returns the loss and adds its gradient to `grad` of the parameters."""
        with self.params.stopwatch.running("loss"):
            loss = self.scorer.differentiable_loss(self.batch)
            loss.backward()
            return loss.item()


def divided(
    scorer: Any,
    examples: Sequence[Encoded],
    shards: int,
    params: ParameterSpace,
    processes: Processes,
) -> DividedExecutor:
    """Returns what makes this process's forward passes on a mini-batch in equal parts."""
    size = len(examples) // shards
    parts = [examples[first : first + size] for first in range(0, len(examples), size)]

    def part(shard: int) -> BatchLoss:
        return BatchLoss(scorer, scorer.collate(parts[shard]), params)

    return DividedExecutor(part, [scorer.share(of) for of in parts], processes)
