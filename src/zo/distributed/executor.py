"""Several processes divide the forward passes of a step.

A step asks for the losses at P points, each on S shards of the mini-batch: P · S passes. They are numbered point after
point, and process r of W makes the r-th block of ⌈P · S / W⌉ of them. The losses are gathered once. Each process adds
the shards of a point in the same order. So no number depends on W.

Where each process holds the data of one shard alone, the passes are numbered shard after shard: process r makes those
of shard r.
"""

import math
from collections.abc import Callable, Sequence

from zo.distributed.processes import Processes, ProcessesError
from zo.weights.executor import Executor
from zo.weights.loss import Loss
from zo.weights.restore import Excursion, RestorePolicy


class DividedExecutor(Executor):
    """Makes those forward passes of a step that are this process's part.

    Args:
        part: Returns the loss of a shard; called once for each shard that this process measures.
        weights: Share of each shard in the loss, > 0: its examples or tokens. One per shard.
        processes: That divide the passes.
        own_data: Whether shard r can be measured by process r alone; there are as many shards as processes then.
    """

    def __init__(
        self,
        part: Callable[[int], Loss],
        weights: Sequence[float],
        processes: Processes,
        own_data: bool = False,
    ):
        self._make_part = part
        self._parts: dict[int, Loss] = {}
        self._weights = weights
        self._processes = processes
        self._own_data = own_data
        super().__init__(self._part(processes.rank if own_data else 0))

    def measure(self, policy: RestorePolicy, excursions: Sequence[Excursion]) -> list[float]:
        """Returns the losses at the points of independent excursions, in their order."""
        passes = [policy.passes(self._loss, points) for points in excursions]
        widths = [len(points) for of_one in passes for points in of_one]
        if not widths:
            return []
        found: list[list[float]] = []
        first = 0
        for of_one in passes:
            own = [(of, self._own(first + i, len(widths))) for i, of in enumerate(of_one)]
            self._excursion(policy, own, found.append)
            first += len(of_one)
        losses = self._gathered(found, widths)
        self._keep(losses)
        return losses

    def alone(self) -> float:
        """Returns the loss at the current θ, which is no part of a step; its shards are divided."""
        own = self._own(0, 1)
        (loss,) = self._gathered([[of_one()] for of_one in own], [1])
        for of_one in own:
            of_one.squares()
        return loss

    def _squares(self) -> list[float]:
        mine = [square for part in self._parts.values() for square in part.squares()]
        return [square for of_one in self._processes.exchange(mine) for square in of_one]

    def _part(self, shard: int) -> Loss:
        if shard not in self._parts:
            self._parts[shard] = self._make_part(shard)
        return self._parts[shard]

    def _own(self, point: int, points: int) -> list[Loss]:
        """Returns the losses of the shards that this process measures at one of several points."""
        shards = range(len(self._weights))
        block = self._block(points)
        mine = range(block * self._processes.rank, block * (self._processes.rank + 1))
        return [self._part(s) for s in shards if self._number(point, s, points) in mine]

    def _block(self, points: int) -> int:
        return -(-points * len(self._weights) // self._processes.world)

    def _number(self, point: int, shard: int, points: int) -> int:
        return shard * points + point if self._own_data else point * len(self._weights) + shard

    def _gathered(self, found: Sequence[Sequence[float]], widths: Sequence[int]) -> list[float]:
        """Returns the loss at each point from the losses of all processes.

        Args:
            found: Losses of this process's passes.
            widths: Points that each pass measures, of all processes.
        """
        points, width = len(widths), max(widths)
        rows = [[*losses, *[0.0] * (width - len(losses))] for losses in found]
        rows += [[0.0] * width] * (self._block(points) - len(rows))
        flat = [x for row in rows for x in row]
        values = [x for of_one in self._processes.gather(flat) for x in of_one]
        losses = []
        for i in range(points):
            places = [self._number(i, s, points) * width for s in range(len(self._weights))]
            for j in range(widths[i]):
                losses.append(weighted_mean([values[at + j] for at in places], self._weights))
        return losses


class AgreedLoss(Loss):
    """A loss that processes compute together, each with its part of the weights: all take process 0's number.

    Args:
        loss: Of this process.
        processes: All call this together.
        tolerance: Relative difference of the processes' numbers above which they are an error; None allows any, since
            other kinds of GPU may round otherwise.
    """

    def __init__(self, loss: Loss, processes: Processes, tolerance: float | None = None):
        self._loss = loss
        self._processes = processes
        self._tolerance = tolerance
        self.squares, self.backward = loss.squares, loss.backward  # type: ignore[method-assign]

    def __call__(self) -> float:
        """Returns the loss; NaN where it is that on any process.

        Raises:
            ProcessesError: If the losses differ by more than the tolerance.
        """
        found = [of_one for (of_one,) in self._processes.gather([self._loss()])]
        numbers = [x for x in found if not math.isnan(x)]
        tolerance = self._tolerance
        if tolerance is not None and not all(
            math.isclose(numbers[0], x, rel_tol=tolerance) for x in numbers
        ):
            raise ProcessesError(
                f"loss: the processes have {found}; processes that hold parts of the same weights need the same"
                " mini-batch, or group= if each has its own part of one"
            )
        return found[0] if numbers == found else math.nan


def weighted_mean(losses: Sequence[float], weights: Sequence[float]) -> float:
    """Returns Σ w_s ℓ_s / Σ w_s, added in order in float64; one loss is returned as it is."""
    if len(losses) == 1:
        return losses[0]
    total = 0.0
    for loss, weight in zip(losses, weights, strict=True):
        total += weight * loss
    return total / sum(weights)
