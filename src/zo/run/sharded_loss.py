"""The loss of one mini-batch in the parts that several processes divide."""

from collections.abc import Sequence
from typing import Any

from zo.distributed.loss import DividedLoss
from zo.distributed.processes import Processes
from zo.run.losses import BatchLoss
from zo.tasks import Encoded
from zo.weights.space import ParameterSpace


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

        def squares() -> list[float]:
            found = [square for part in built.values() for square in part.squares]
            for of_part in built.values():
                of_part.squares.clear()
            return found

        super().__init__(part, [scorer.share(of) for of in parts], processes, squares=squares)
