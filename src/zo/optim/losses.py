"""The losses that a step measures: each a finite Python float, counted and kept for a replay."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from torch import Tensor

from zo.weights.loss import Context, LossFn
from zo.weights.restore import Excursion, RestorePolicy
from zo.weights.sharded import whole


class RecordedLosses:
    """The numbers that a step measured, in their order: answers a replay.

    Args:
        losses: As `CountedLoss.losses` had them.
    """

    def __init__(self, losses: Sequence[float]):
        self._next = iter(losses).__next__

    def __call__(self) -> float:
        """Returns the next number, a loss."""
        return self._next()

    def mean_square(self) -> float:
        """Returns the next number, a mean square."""
        return self._next()


class CountedLoss:
    """A loss that keeps what it measured, and offers what the loss offers; see `LossFn`.

    Args:
        loss_fn: What is called.
        context: Returns a context for each call of the loss. `measure` is called outside of it: it moves weights.
        finite: Returns its second argument if that is finite, and raises otherwise.
        finish_restore: Makes the tensors θ, unless a probe is under way.

    Attributes:
        losses: All numbers that it measured, in their order.
        forwards: Forward passes that it made.
    """

    def __init__(
        self,
        loss_fn: LossFn,
        context: Context = nullcontext,
        finite: Callable[[str, float], float] = lambda what, value: value,
        finish_restore: Callable[[], None] = lambda: None,
    ):
        self.loss_fn: Any = loss_fn
        self.context = context
        self.finite = finite
        self.finish_restore = finish_restore
        self.losses: list[float] = []
        self.forwards = 0
        self.branch_bytes = getattr(loss_fn, "branch_bytes", None)
        self.branches = getattr(loss_fn, "branches", None) and self._branches
        self.measure = getattr(loss_fn, "measure", None) and self._measure

    def __call__(self) -> float:
        """Returns the loss at the current θ."""
        self.finish_restore()
        with self.context():
            loss = self.loss_fn()
        return self._keep([loss])[0]

    def _branches(self, n: int) -> list[float]:
        with self.context():
            losses = self.loss_fn.branches(n)
        return self._keep(losses)

    def _measure(self, policy: RestorePolicy, excursions: Sequence[Excursion]) -> list[float]:
        return self._keep(self.loss_fn.measure(policy, excursions))

    def mean_square(self) -> float:
        """Returns the mean square of the texts' numbers of all passes; of another loss, a member counts as one text."""
        if (mean_square := getattr(self.loss_fn, "mean_square", None)) is None:
            square = math.fsum(loss * loss for loss in self.losses) / self.forwards
        else:
            with self.context():
                square = number(mean_square())
        self.losses.append(self.finite("mean square of the losses", square))
        return square

    def backward(self) -> float:
        """Returns the loss and leaves its gradient in the parameters.

        Raises:
            TypeError: If the loss has no such method.
        """
        if (backward := getattr(self.loss_fn, "backward", None)) is None:
            raise TypeError("loss: has no method `backward`, which a first-order method needs")
        with self.context():
            loss = backward()
        return self._keep([loss])[0]

    def _keep(self, losses: Sequence[object]) -> list[float]:
        """Returns losses of forward passes, counted."""
        found = [number(loss) for loss in losses]
        self.forwards += len(found)
        self.losses += [self.finite("loss", loss) for loss in found]
        return found


def number(loss: object) -> float:
    """Returns a loss as a Python float, so that neighbouring losses are subtracted in float64.

    Raises:
        TypeError: If it is neither a number nor a tensor.
        ValueError: If it is a tensor of several numbers.
    """
    if isinstance(loss, Tensor):
        if loss.numel() != 1:
            shape = tuple(loss.shape)
            raise ValueError(f"loss: a tensor of shape {shape}; return one number, as loss.mean()")
        if type(loss) is not Tensor:
            loss = whole(loss)  # of a DTensor, this process may hold a part of a sum
    if loss is None or not hasattr(loss, "__float__"):
        raise TypeError(f"loss: {loss!r}; the closure must return a number or a tensor of one")
    return float(loss)
