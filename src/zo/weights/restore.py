"""Where θ is while it is probed, and how it comes back: one class per policy of `precision.restore`."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from zo.weights.directions import Direction, Terms
from zo.weights.factors import Factors
from zo.weights.streamed import Stream
from zo.weights.updates import add_, add_rows_

LossFn: TypeAlias = Callable[[], float]
"""Loss of one fixed mini-batch at the current θ: eval mode, no gradient, a Python float."""


@runtime_checkable
class BranchedLoss(Protocol):
    """A `LossFn` that can be had at several places of θ by one forward pass."""

    def __call__(self) -> float:
        """Returns the loss."""
        ...

    def branches(self, n: int) -> list[float]:
        """Returns the losses of n copies of the mini-batch: row r of copy b is row b · rows + r of every layer."""
        ...


class Space(Protocol):
    """What an excursion needs of θ: see `zo.weights.space.ParameterSpace`, which is one."""

    tensors: list[Tensor]
    owed: Terms
    passes: int
    stream: Stream | None
    factors: Factors | None

    def add_(self, terms: Terms) -> None:
        """Moves θ."""

    def take_snapshot(self) -> list[Tensor]:
        """Copies θ."""
        ...

    def timed(self, passes: int = 1) -> AbstractContextManager[None]:
        """Times a pass over the weights."""
        ...


class Excursion(ABC):
    """Where θ is during a probe. Only `ParameterSpace.excursion` makes one.

    Args:
        space: θ.
    """

    def __init__(self, space: Space):
        self.space = space

    @abstractmethod
    def to(self, terms: Terms) -> None:
        """Moves to θ + Σ c_j z_j, counted from θ and not from where the last call left it."""

    @abstractmethod
    def back(self) -> None:
        """Moves back to θ, or leaves that to the next pass."""

    def check(self) -> None:  # noqa: B027
        """Makes sure, at the end of an excursion that nothing cut short, that what was measured was displaced."""

    def losses(self, loss_fn: LossFn, places: Sequence[Terms]) -> list[float]:
        """Returns the losses at θ + Σ c_j z_j of each of `places`, in their order; θ stays at one of them."""
        found = []
        for terms in places:
            self.to(terms)
            found.append(loss_fn())
        return found


class Subtract(Excursion):
    """Moves by differences: +ε z, then −2ε z, then +ε z. Every move rounds."""

    def __init__(self, space: Space):
        super().__init__(space)
        self.at: dict[Direction, float] = {}

    def to(self, terms: Terms) -> None:
        """Adds what leads from the last place to this one."""
        target = dict[Direction, float]()
        for c, z in terms:
            target[z] = target.get(z, 0.0) + c
        moves = [(target.get(z, 0.0) - self.at.get(z, 0.0), z) for z in {**self.at, **target}]
        self.at = target
        self.space.add_([(c, z) for c, z in moves if c != 0.0])

    def back(self) -> None:
        """Subtracts what was added."""
        self.to([])


class Merged(Subtract):
    """Moves by differences, too, but leaves the last one to the next pass over the weights."""

    def back(self) -> None:
        """Notes down what is to be subtracted."""
        if self.at:
            self.space.owed = [(-c, z) for z, c in self.at.items() if c != 0.0]


class Snapshot(Excursion):
    """Writes θ + Σ c_j z_j from a copy of θ, and the copy back at the end. θ never drifts."""

    def __init__(self, space: Space):
        super().__init__(space)
        with space.timed():
            self.theta = space.take_snapshot()

    def to(self, terms: Terms) -> None:
        """Writes all tensors anew."""
        with self.space.timed():
            for i, (p, theta) in enumerate(zip(self.space.tensors, self.theta, strict=True)):
                add_(p, theta, i, terms)

    def back(self) -> None:
        """Copies θ back."""
        with self.space.timed():
            torch._foreach_copy_(self.space.tensors, self.theta)


class Streamed(Excursion):
    """Leaves θ where it is and has the modules compute with θ + Σ c_j z_j, see `zo.weights.streamed`."""

    def __init__(self, space: Space):
        super().__init__(space)
        assert space.stream is not None
        self.stream = space.stream

    def to(self, terms: Terms) -> None:
        """Tells the modules, which displace when they are called."""
        self.space.passes += bool(terms)
        self.stream.to(functools.partial(self._displace, terms) if terms else None)

    def back(self) -> None:
        """Leaves the modules alone."""
        self.stream.back()

    def check(self) -> None:
        """Makes sure that every tensor's module was called."""
        self.stream.check()

    def _displace(self, terms: Terms, out: Tensor, i: int, rows: Tensor | None) -> None:
        with self.space.timed(passes=0):
            theta = self.space.tensors[i]
            if rows is None:
                add_(out, theta, i, terms)
            else:
                add_rows_(out, theta, i, terms, rows)


class Beside(Excursion):
    """Lets the layers compute at one place, or at all places at once, see `zo.weights.factors`."""

    def __init__(self, space: Space):
        super().__init__(space)
        assert space.factors is not None
        self.factors = space.factors

    def to(self, terms: Terms) -> None:
        """Draws the factors of one place."""
        self._go([terms])

    def losses(self, loss_fn: LossFn, places: Sequence[Terms]) -> list[float]:
        """Measures at all places by one forward pass if the loss can."""
        if isinstance(loss_fn, BranchedLoss):
            self._go(places)
            found = loss_fn.branches(len(places))
        else:
            found = super().losses(loss_fn, places)
        self.factors.check()
        return found

    def back(self) -> None:
        """Leaves one place, θ."""
        self.factors.back()

    def _go(self, places: Sequence[Terms]) -> None:
        with self.space.timed(passes=0):
            self.factors.go(places)


class Unmoved(Excursion):
    """Stays at θ."""

    def to(self, terms: Terms) -> None:
        """Does not move."""

    def back(self) -> None:
        """Is there."""


POLICIES: dict[str, type[Excursion]] = {
    "subtract": Subtract,
    "merged": Merged,
    "snapshot": Snapshot,
    "streamed": Streamed,
    "factors": Beside,
}

RESTORE_POLICIES = tuple(POLICIES)

EXACT = ("snapshot", "streamed", "factors")
"""Policies under which a probe leaves no trace in θ."""
