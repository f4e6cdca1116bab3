"""The loss of one mini-batch, whose forward passes several processes divide.

A step asks for the losses at P points, each on S shards of the mini-batch: P · S passes. They are numbered point after
point, and process r of W makes the r-th block of ⌈P · S / W⌉ of them. The losses are gathered once. Each process adds
the shards of a point in the same order. So no number depends on W.

Where each process holds the data of one shard alone, the passes are numbered shard after shard: process r makes those
of shard r.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from zo.distributed.processes import Processes, ProcessesError
from zo.weights.directions import Terms
from zo.weights.loss import LossFn
from zo.weights.restore import Excursion, FactoredPolicy, RestorePolicy

ShardedPoints: TypeAlias = list[tuple[Sequence[Terms], list[int]]]
"""Of one excursion: points that one pass measures, and the shards that this process measures there."""


class DividedLoss:
    """A loss that offers `measure`.

    Args:
        part: Returns the loss of a shard, with what it offers. It is called whenever the shard is measured.
        weights: Share of each shard in the loss, > 0: its examples or tokens. One per shard.
        processes: That divide the passes.
        own_data: Whether shard r can be measured by process r alone; there are as many shards as processes then.
        squares: Returns the mean squares of the texts' numbers of this process's passes since it was last called; None
            of losses without.
    """

    def __init__(
        self,
        part: Callable[[int], LossFn],
        weights: Sequence[float],
        processes: Processes,
        own_data: bool = False,
        squares: Callable[[], Sequence[float]] | None = None,
    ):
        self._part = part
        self._weights = weights
        self._processes = processes
        self._own_data = own_data
        self._squares = squares
        self.mean_square = squares and self._mean_square

    def __call__(self) -> float:
        """Returns the loss at the current θ; its shards are divided."""
        found = [[self._part(s)()] for s in self._own(0, 1)]
        (loss,) = self._gathered(found, [1])
        return loss

    def measure(self, policy: RestorePolicy, excursions: Sequence[Excursion]) -> list[float]:
        """Returns the losses at all points, in order.

        Under an exact policy this process displaces θ to the points that it measures. Under the others it displaces θ
        to all points, since each displacement rounds θ.
        """
        some = self._part(self._processes.rank if self._own_data else 0)
        passes: list[list[Sequence[Terms]]]
        if isinstance(policy, FactoredPolicy) and getattr(some, "branches", None) is not None:
            passes = [policy.chunks(some, points) for points in excursions]
        else:
            passes = [[[point] for point in points] for points in excursions]
        widths = [len(points) for of_one in passes for points in of_one]
        if not widths:
            return []
        found: list[list[float]] = []
        first = 0
        for of_one in passes:
            own = [self._own(first + i, len(widths)) for i in range(len(of_one))]
            found += self._excursion(policy, list(zip(of_one, own, strict=True)))
            first += len(of_one)
        return self._gathered(found, widths)

    def _mean_square(self) -> float:
        """Returns the mean square of the texts' numbers, over all passes of all processes."""
        assert self._squares is not None
        found = [x for of_one in self._processes.exchange([*self._squares()]) for x in of_one]
        return math.fsum(found) / len(found) if found else 0.0

    def _excursion(self, policy: RestorePolicy, own: ShardedPoints) -> Iterator[list[float]]:
        """Makes one excursion; yields the losses of each of this process's passes."""
        exact = policy.constraints.exact
        if exact and not any(shards for _, shards in own):
            return
        if not any(any(points) for points, _ in own):  # θ itself
            policy.finish_restore()
            yield from ([self._part(s)()] * len(points) for points, of in own for s in of)
            return
        with policy.excursion() as probe:
            for points, shards in own:
                if isinstance(policy, FactoredPolicy):
                    yield from (probe.losses(self._part(s), points) for s in shards)
                elif shards or not exact:
                    probe.to(points[0])
                    yield from ([self._part(s)()] for s in shards)

    def _own(self, point: int, points: int) -> list[int]:
        """Returns the shards that this process measures at one of several points."""
        shards = range(len(self._weights))
        block = self._block(points)
        mine = range(block * self._processes.rank, block * (self._processes.rank + 1))
        return [s for s in shards if self._number(point, s, points) in mine]

    def _block(self, points: int) -> int:
        """Returns the most passes that a process makes."""
        return -(-points * len(self._weights) // self._processes.world)

    def _number(self, point: int, shard: int, points: int) -> int:
        """Returns the number of a pass."""
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


class AgreedLoss:
    """A loss that processes compute together, each with its part of the weights: all take process 0's number.

    Args:
        loss_fn: Of this process.
        processes: All call this together.
        tolerance: Relative difference of the processes' numbers above which they are an error; None allows any, since
            other kinds of GPU may round otherwise.
    """

    def __init__(self, loss_fn: LossFn, processes: Processes, tolerance: float | None = None):
        self._loss_fn = loss_fn
        self._processes = processes
        self._tolerance = tolerance
        self.backward = getattr(loss_fn, "backward", None)
        self.mean_square = getattr(loss_fn, "mean_square", None)

    def __call__(self) -> float:
        """Returns the loss; NaN where it is that on any process.

        Raises:
            ProcessesError: If the losses differ by more than the tolerance.
        """
        found = [of_one for (of_one,) in self._processes.gather([self._loss_fn()])]
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
