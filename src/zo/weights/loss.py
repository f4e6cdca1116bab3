"""The loss of one mini-batch, and what it offers beside a number."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from torch import Tensor

from zo.weights.sharded import whole

Context: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Returns the context of one call of a loss."""


class Loss(ABC):
    """The loss of one fixed mini-batch at the current θ: eval mode, no gradient.

    Attributes:
        branched: Whether `branches` measures several points in one forward pass, as `restore=factors` asks for.
    """

    branched = False

    @abstractmethod
    def __call__(self) -> float:
        """Returns the loss."""

    def branches(self, n: int) -> list[float]:
        """Returns the losses of n copies of the mini-batch that go through the model in one forward pass.

        Row r of copy b is row b · rows + r of every layer.
        """
        raise NotImplementedError

    def branch_bytes(self, own: bool) -> int:
        """Returns about the most bytes that one copy takes; 0 is not limited.

        Args:
            own: Whether each branch has factors of its own.
        """
        return 0

    def squares(self) -> list[float]:
        """Returns mean squares of the texts' numbers, of all passes since the last call; none unless it rates texts."""
        return []

    def backward(self) -> float:
        """Returns the loss and adds its gradient to `grad` of the parameters.

        Raises:
            TypeError: If it has none.
        """
        raise TypeError("loss: has no method `backward`, which a first-order method needs")


class ClosureLoss(Loss):
    """The loss that a function returns.

    Args:
        closure: Returns a number, or a tensor of one. An object may also have methods of `Loss`: `branches`,
            `branch_bytes`, `backward`; and `mean_square`, which returns the mean square of the texts' numbers over all
            calls since it was last called.
        call: Calls a function that measures losses, and returns what it returns; None just calls it.

    Attributes:
        context: Returns a context for each call of the closure.
        rates_texts: Whether it has `mean_square`.
        dtype: Of the last loss; None of a Python number.
    """

    dtype: Any = None

    def __init__(
        self, closure: Callable[[], object], call: Callable[[Callable[[], Any]], Any] | None = None
    ):
        self.context: Context = nullcontext
        self._call = call or (lambda measure: measure())
        self._closure: Any = closure
        self.branched, self.rates_texts, self._sized, self._differentiable = (
            hasattr(closure, name)
            for name in ("branches", "mean_square", "branch_bytes", "backward")
        )

    def __call__(self) -> float:
        """Returns the loss."""
        with self.context():
            found: float = self._call(self._measure)
        return found

    def _measure(self) -> float:
        loss = self._closure()
        self.dtype = getattr(loss, "dtype", None)
        return number(loss)

    def branches(self, n: int) -> list[float]:
        """As `Loss.branches`."""
        with self.context():
            found: list[float] = self._call(lambda: [*map(number, self._closure.branches(n))])
        return found

    def branch_bytes(self, own: bool) -> int:
        """As `Loss.branch_bytes`."""
        return int(self._closure.branch_bytes(own)) if self._sized else 0

    def squares(self) -> list[float]:
        """As `Loss.squares`: one number for all passes."""
        if not self.rates_texts:
            return []
        with self.context():
            return [number(self._closure.mean_square())]

    def backward(self) -> float:
        """As `Loss.backward`."""
        if not self._differentiable:
            return super().backward()
        with self.context():
            return number(self._closure.backward())


class RecordedLosses(Loss):
    """What a step measured, in order: answers a replay.

    Args:
        losses: As `StepInfo.losses` has them.
    """

    def __init__(self, losses: Sequence[float]):
        self._next = iter(losses).__next__

    def __call__(self) -> float:
        """Returns the next loss."""
        return self._next()

    def squares(self) -> list[float]:
        """Returns the next number, a mean square."""
        return [self._next()]


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
    if not hasattr(loss, "__float__") or (isinstance(loss, Tensor) and loss.is_complex()):
        raise TypeError(f"loss: {loss!r}; the closure must return a number or a tensor of one")
    return float(loss)
