"""The losses that a step measures: each a finite Python float, counted and kept for a replay."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from zo.weights.restore import (
    BranchedLoss,
    Excursion,
    LossFn,
    RestorePolicy,
    SharedLoss,
    SizedBranches,
)
from zo.weights.sharded import whole


@runtime_checkable
class DifferentiableLoss(Protocol):
    """A `LossFn` that can be backpropagated, for the first-order references."""

    def __call__(self) -> float:
        """Returns the loss, without a gradient."""
        ...

    def backward(self) -> float:
        """Returns the loss and adds its gradient to `grad` of the parameters."""
        ...


@runtime_checkable
class PromptLosses(Protocol):
    """A `LossFn` that is a mean over prompts and knows the loss of each."""

    def __call__(self) -> float:
        """Returns the mean."""
        ...

    def mean_square(self) -> float:
        """Returns the mean square of the prompts' losses, over all calls since it was last asked for."""
        ...


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
    """A loss that keeps what it measured and refuses to be NaN or infinite.

    Args:
        loss_fn: What is called.
        finite: Returns its second argument if that is finite, and raises otherwise.
        settle: Makes the tensors θ, unless a probe is under way.

    Attributes:
        losses: All numbers that it measured, in their order.
        forwards: Forward passes that it made.
    """

    def __init__(
        self,
        loss_fn: LossFn,
        finite: Callable[[str, float], float],
        settle: Callable[[], None],
    ):
        self.loss_fn = loss_fn
        self.finite = finite
        self.settle = settle
        self.losses: list[float] = []
        self.forwards = 0

    def __call__(self) -> float:
        """Returns the loss at the current θ."""
        self.settle()
        return self._keep([number(self.loss_fn())])[0]

    def mean_square(self) -> float:
        """Returns the mean square of the prompts' losses of all passes; a plain loss counts as one prompt's."""
        if isinstance(self.loss_fn, PromptLosses):
            square = self.loss_fn.mean_square()
        else:
            square = math.fsum(loss * loss for loss in self.losses) / self.forwards
        self.losses.append(self.finite("mean square of the losses", square))
        return square

    def _keep(self, losses: list[float]) -> list[float]:
        """Returns losses of forward passes, counted."""
        self.forwards += len(losses)
        self.losses += [self.finite("loss", loss) for loss in losses]
        return losses

    def backward(self) -> float:
        """Returns the loss and leaves its gradient in the parameters."""
        if not isinstance(self.loss_fn, DifferentiableLoss):
            raise TypeError("a first-order method needs a loss with a method `backward`")
        return self._keep([number(self.loss_fn.backward())])[0]


class CountedBranches(CountedLoss):
    """The same of a `BranchedLoss`."""

    def branches(self, n: int) -> list[float]:
        """Returns the losses of n copies of the mini-batch."""
        assert isinstance(self.loss_fn, BranchedLoss)
        return self._keep([number(loss) for loss in self.loss_fn.branches(n)])

    def branch_bytes(self, own: bool) -> int:
        """Returns what a copy of the mini-batch takes; 0 of a loss that does not know."""
        return self.loss_fn.branch_bytes(own) if isinstance(self.loss_fn, SizedBranches) else 0


class CountedShared(CountedLoss):
    """The same of a `SharedLoss`: a loss that is not finite is refused by all processes."""

    def measure(self, policy: RestorePolicy, excursions: Sequence[Excursion]) -> list[float]:
        """Returns the losses at the points of excursions."""
        assert isinstance(self.loss_fn, SharedLoss)
        return self._keep(self.loss_fn.measure(policy, excursions))


def counter(
    loss_fn: LossFn, finite: Callable[[str, float], float], settle: Callable[[], None]
) -> CountedLoss:
    """Returns what counts a loss and offers what the loss offers."""
    if isinstance(loss_fn, SharedLoss):
        return CountedShared(loss_fn, finite, settle)
    kind = CountedBranches if isinstance(loss_fn, BranchedLoss) else CountedLoss
    return kind(loss_fn, finite, settle)


def number(loss: object) -> float:
    """Returns a loss as a Python float, so that neighbouring losses are subtracted in float64.

    Raises:
        TypeError: If it is neither a number nor a tensor.
        ValueError: If it is a tensor of several numbers.
    """
    if isinstance(loss, Tensor) and loss.numel() != 1:
        shape = tuple(loss.shape)
        raise ValueError(f"loss: a tensor of shape {shape}; return one number, as loss.mean()")
    if isinstance(loss, Tensor):
        loss = whole(loss)  # of a DTensor, this process may hold a part of a sum
    if loss is None or not hasattr(loss, "__float__"):
        raise TypeError(f"loss: {loss!r}; the closure must return a number or a tensor of one")
    return float(loss)
