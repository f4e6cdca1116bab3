"""The loss of one mini-batch, and its optional methods."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias


class LossFn(Protocol):
    """The loss of one fixed mini-batch at the current θ: eval mode, no gradient.

    Optional methods:

    - `branches(n) -> list[float]`: the losses of n copies of the mini-batch that go through the model in one forward
      pass; row r of copy b is row b · rows + r of every layer. `restore=factors` then measures at n points at once.
    - `branch_bytes(own) -> int`: about the most bytes that one copy takes, where each branch has factors of its own
      (`own`) or not; 0 is not limited.
    - `mean_square() -> float`: of a mean over texts, the mean square of the texts' numbers, over all calls since it was
      last asked for. `baseline=prompt` divides by it.
    - `backward() -> float`: the loss; adds its gradient to `grad` of the parameters. First-order methods need it.
    - `measure(policy, excursions) -> list[float]`: what `ParameterSpace.measure` returns, where several processes
      divide the forward passes.
    """

    def __call__(self) -> float:
        """Returns the loss."""
        ...


Context: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Returns the context of one call of a loss."""
