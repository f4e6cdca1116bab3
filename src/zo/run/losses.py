"""The loss of one mini-batch, timed."""

import math
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
        squares: Mean square of the texts' numbers of each pass, in order, of a scorer that rates texts.
    """

    scorer: Any
    batch: Any
    params: ParameterSpace
    squares: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        """Returns the loss, without a gradient."""
        with self.params.stopwatch.running("loss"):
            if self.scorer.writes:
                return self._rated(1)[0]
            return self.scorer.loss(self.batch)

    def mean_square(self) -> float:
        """Returns the mean square of the texts' numbers, over all passes since it was last asked for."""
        squares, self.squares = self.squares, []
        return math.fsum(squares) / len(squares) if squares else 0.0

    def branches(self, n: int) -> list[float]:
        """Returns the losses of n copies of the mini-batch that go through the model together."""
        with self.params.stopwatch.running("loss"):
            if self.scorer.writes:
                return self._rated(n)
            return self.scorer.branches(self.batch, n)

    def branch_bytes(self, own: bool) -> int:
        """Returns about the most bytes that a copy of the mini-batch takes."""
        if own or self.scorer.writes:
            return self.scorer.branch_bytes(self.batch)
        return 0  # points that share their right factors go together, as ever

    def _rated(self, n: int) -> list[float]:
        """Returns the losses of n copies of the prompts, and keeps the squares of their texts' numbers."""
        losses, squares = self.scorer.rated(self.batch, n)
        self.squares += squares
        return losses

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
) -> DividedLoss:
    """Returns the loss of a mini-batch in equal parts, whose forward passes processes divide."""
    size = len(examples) // shards
    parts = [examples[first : first + size] for first in range(0, len(examples), size)]
    built: dict[int, BatchLoss] = {}

    def part(shard: int) -> BatchLoss:
        if shard not in built:
            built[shard] = BatchLoss(scorer, scorer.collate(parts[shard]), params)
        return built[shard]

    def squares() -> list[float]:
        found = [square for of_part in built.values() for square in of_part.squares]
        for of_part in built.values():
            of_part.squares.clear()
        return found

    return DividedLoss(part, [scorer.share(of) for of in parts], processes, squares=squares)
