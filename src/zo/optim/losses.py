"""The losses that a step measures: each a finite Python float, counted and kept for a replay."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from zo.weights.restore import BranchedLoss, Excursion, LossFn, SharedLoss
from zo.weights.sharded import whole
from zo.weights.space import ParameterSpace


@runtime_checkable
class DifferentiableLoss(Protocol):
    """A `LossFn` that can be backpropagated, for the first-order references."""

    def __call__(self) -> float:
        """Returns the loss, without a gradient."""
        ...

    def backward(self) -> float:
        """Returns the loss and adds its gradient to `grad` of the parameters."""
        ...


class CountedLoss:
    """A loss that keeps what it measured and refuses to be NaN or infinite.

    Args:
        loss_fn: What is called.
        finite: Returns its second argument if that is finite, and raises otherwise.
        settle: Makes the tensors θ, unless a probe is under way.
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

    def __call__(self) -> float:
        """Returns the loss at the current θ."""
        self.settle()
        self.losses.append(self.finite("loss", number(self.loss_fn())))
        return self.losses[-1]

    def backward(self) -> float:
        """Returns the loss and leaves its gradient in the parameters."""
        if not isinstance(self.loss_fn, DifferentiableLoss):
            raise TypeError("a first-order method needs a loss with a method `backward`")
        self.losses.append(self.finite("loss", number(self.loss_fn.backward())))
        return self.losses[-1]


class CountedBranches(CountedLoss):
    """The same of a `BranchedLoss`."""

    def branches(self, n: int) -> list[float]:
        """Returns the losses of n copies of the mini-batch."""
        assert isinstance(self.loss_fn, BranchedLoss)
        found = [number(loss) for loss in self.loss_fn.branches(n)]
        self.losses += [self.finite("loss", loss) for loss in found]
        return found


class CountedShared(CountedLoss):
    """The same of a `SharedLoss`: a loss that is not finite is refused by all processes."""

    def measure(self, params: ParameterSpace, excursions: Sequence[Excursion]) -> list[float]:
        """Returns the losses at the points of excursions."""
        assert isinstance(self.loss_fn, SharedLoss)
        found = self.loss_fn.measure(params, excursions)
        self.losses += [self.finite("loss", loss) for loss in found]
        return found


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
