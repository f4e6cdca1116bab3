"""Makes the forward passes of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from zo.weights.directions import Terms
from zo.weights.loss import ClosureLoss, Loss
from zo.weights.restore import Excursion, RestorePolicy

AssignedPoints: TypeAlias = tuple[Sequence[Terms], Sequence[Loss]]
"""Points that share a pass, and the losses that this process measures there."""


class Executor:
    """Makes all forward passes of a step in this process.

    Args:
        loss: Of the mini-batch.

    Attributes:
        losses: All numbers that the step measured, in order, which a replay needs.
        forwards: Forward passes of the step.
    """

    def __init__(self, loss: Loss):
        self._loss = loss
        self.begin(lambda what, value: value)

    @classmethod
    def of(cls, loss: Executor | Loss | Callable[[], object]) -> Executor:
        """Returns an executor as it is, and that of a loss or a function."""
        if isinstance(loss, Executor):
            return loss
        return Executor(loss if isinstance(loss, Loss) else ClosureLoss(loss))

    def begin(self, finite: Callable[[str, float], float]) -> None:
        """Begins a step.

        Args:
            finite: Returns its second argument if that is finite, and raises otherwise.
        """
        self.losses: list[float] = []
        self.forwards = 0
        self._finite = finite

    def measure(self, policy: RestorePolicy, excursions: Sequence[Excursion]) -> list[float]:
        """Returns the losses at the points of independent excursions, in their order."""
        before = len(self.losses)
        for points in excursions:
            passes = policy.passes(self._loss, points)
            self._excursion(policy, [(of, [self._loss]) for of in passes], self._keep)
        return self.losses[before:]

    def alone(self) -> float:
        """Returns the loss at the current θ, which is no part of a step."""
        loss = self._loss()
        self._loss.squares()
        return loss

    def mean_square(self) -> float:
        """Returns the mean square of the texts' numbers of all passes; of another loss, a member counts as one text."""
        squares, count = self._squares(), self.forwards
        if not squares:
            squares = [math.fsum(loss * loss for loss in self.losses) / count]
        square = math.fsum(squares) / len(squares)
        self.losses.append(self._finite("mean square of the losses", square))
        return square

    def backward(self) -> float:
        """Returns the loss and leaves its gradient in the parameters.

        Raises:
            TypeError: If the loss has none.
        """
        loss = self._loss.backward()
        self._keep([loss])
        return loss

    def _squares(self) -> list[float]:
        return self._loss.squares()

    def _keep(self, losses: Sequence[float]) -> None:
        self.forwards += len(losses)
        self.losses += [self._finite("loss", loss) for loss in losses]

    def _excursion(
        self,
        policy: RestorePolicy,
        passes: Sequence[AssignedPoints],
        keep: Callable[[list[float]], None],
    ) -> None:
        """Makes one excursion, and hands on the losses of each pass.

        Under a policy that is not exact θ visits the points of other processes, too, since each displacement rounds θ.
        """
        exact = policy.constraints.exact
        if exact and not any(losses for _, losses in passes):
            return
        if not any(any(points) for points, _ in passes):  # θ itself
            policy.finish_restore()
            for points, losses in passes:
                for loss in losses:
                    keep([loss() for _ in points])
            return
        with policy.excursion() as probe:
            for points, losses in passes:
                if losses or not exact:
                    probe.displace_to(points)
                for loss in losses:
                    keep(probe.losses(loss, len(points)))
