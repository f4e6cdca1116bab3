"""The trainable tensors of a model and the only code that writes them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn

from zo.directions import Direction
from zo.stopwatch import Stopwatch

Terms: TypeAlias = Sequence[tuple[float, Direction]]
"""A displacement: sum of coefficient times direction."""

RESTORE_POLICIES = ("subtract", "snapshot")

EXACT = ("snapshot",)
"""Policies under which a probe leaves no trace in θ."""


class ParamSpace:
    """θ: tensors in a fixed order, each storage once, moved along directions in place.

    Args:
        named: Name and tensor pairs. A tensor that shares its storage with an earlier one (tied weights) is left out.
        restore: How θ comes back after a probe. `subtract` subtracts what was added, as the paper's code does: no
            extra memory, and in half precision a drift of about one rounding per probe. `snapshot` copies θ back from
            a copy: exact in every dtype, and twice the memory of θ.
        exempt: Names of the tensors that weight decay leaves alone.

    Attributes:
        names: One per tensor.
        parameters: The tensors as given: what backpropagation leaves its gradients in.
        tensors: The same storages without gradient: what is moved.
        decays: Whether weight decay applies, one per tensor.
        restore: As given.
        seconds: Time spent in passes over the weights; of a GPU, those that it is done with.

    Raises:
        ValueError: On an unknown restore policy or no tensor at all.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, Tensor]],
        restore: str = "subtract",
        exempt: Collection[str] = (),
    ):
        if restore not in RESTORE_POLICIES:
            raise ValueError(f"restore={restore!r}: must be one of {', '.join(RESTORE_POLICIES)}")
        unique: dict[int, tuple[str, Tensor]] = {}
        for name, tensor in named:
            unique.setdefault(tensor.data_ptr(), (name, tensor))
        kept = list(unique.values())
        if not kept:
            raise ValueError("no trainable tensors: at least one is needed")
        self.names = [name for name, _ in kept]
        self.parameters = [tensor for _, tensor in kept]
        self.tensors = [tensor.detach() for tensor in self.parameters]
        self.decays = [name not in exempt for name in self.names]
        self.restore = restore
        self._stopwatch = Stopwatch(self.tensors[0].device)
        self._snapshot: list[Tensor] | None = None
        self._observed = True

    @classmethod
    def of(cls, model: nn.Module, restore: str = "subtract") -> "ParamSpace":
        """Returns the space of all parameters of `model` that require gradients, in `named_parameters` order.

        Weight decay leaves alone what its module makes a bias (the attribute `bias`) and all that belongs to a
        normalisation layer: a module one of whose classes is called ...Norm.
        """
        trainable = ((n, p) for n, p in model.named_parameters() if p.requires_grad)
        return cls(trainable, restore, exempt=_not_decayed(model))

    @property
    def seconds(self) -> float:
        """Time spent in passes over the weights."""
        return self._stopwatch.seconds

    @property
    def numel(self) -> int:
        """n: number of trainable values."""
        return sum(t.numel() for t in self.tensors)

    def add_(self, terms: Terms, decay: float = 0.0) -> None:
        """Moves θ by Σ c_j z_j in one pass: float32 arithmetic, rounded to the tensors' dtype once.

        Args:
            terms: (c_j, z_j) pairs; an empty sequence adds nothing.
            decay: Share of θ, ≥ 0, that is taken away in the same pass where weight decay applies.
        """
        if terms or decay:
            with self._timed():
                for i, p in enumerate(self.tensors):
                    _add_(p, p, i, terms, decay if self.decays[i] else 0.0)

    def visit(self, update: Callable[[int, Tensor], None]) -> None:
        """Calls `update(i, p)` for every tensor, as one timed pass; `update` reads p and writes state of its own."""
        with self._timed():
            for i, p in enumerate(self.tensors):
                update(i, p)

    def full(self, value: float, dtype: torch.dtype | None = None) -> list[Tensor]:
        """Returns tensors of θ's shapes and devices, in its dtype unless another is given, filled with `value`."""
        return [torch.full_like(p, value, dtype=dtype) for p in self.tensors]

    def non_finite(self) -> tuple[str, float] | None:
        """Returns name and largest magnitude (nan or inf) of the first tensor with a non-finite entry, or None."""
        largest = torch.stack([m.float() for m in torch._foreach_norm(self.tensors, math.inf)])
        if bool(largest.isfinite().all()):  # the only wait for the device where all is well
            return None
        values = zip(self.names, largest.tolist(), strict=True)
        return next((name, value) for name, value in values if not math.isfinite(value))

    @contextmanager
    def excursion(self) -> Iterator["Excursion"]:
        """Lends θ out for probing; on exit θ is back, also when the body raises.

        Yields:
            An `Excursion`, whose `to` moves to θ + Σ c_j z_j.
        """
        trip: Excursion
        if self.restore in EXACT and not self._observed:
            trip = _Nowhere(self)
        else:
            trip = _Snapshot(self) if self.restore == "snapshot" else _Subtract(self)
        try:
            yield trip
        finally:
            trip.back()

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """While the body runs nobody measures: excursions that would leave no trace in θ are not made."""
        self._observed = False
        try:
            yield
        finally:
            self._observed = True

    def take_snapshot(self) -> list[Tensor]:
        """Copies θ into the space's spare buffers, made at the first call, and returns them."""
        if self._snapshot is None:
            self._snapshot = [torch.empty_like(p) for p in self.tensors]
        torch._foreach_copy_(self._snapshot, self.tensors)
        return self._snapshot

    def _timed(self) -> AbstractContextManager[None]:
        """Adds the time of a pass over the weights to `seconds`."""
        return self._stopwatch.running()


class Excursion(ABC):
    """Where θ is during a probe. Only `ParamSpace.excursion` makes one."""

    def __init__(self, space: ParamSpace):
        self.space = space

    @abstractmethod
    def to(self, terms: Terms) -> None:
        """Moves to θ + Σ c_j z_j, counted from θ and not from where the last call left it."""

    @abstractmethod
    def back(self) -> None:
        """Moves back to θ."""


class _Subtract(Excursion):
    """Moves by differences: +ε z, then −2ε z, then +ε z. Every move rounds."""

    def __init__(self, space: ParamSpace):
        super().__init__(space)
        self.at: dict[Direction, float] = {}

    def to(self, terms: Terms) -> None:
        target = dict[Direction, float]()
        for c, z in terms:
            target[z] = target.get(z, 0.0) + c
        moves = [(target.get(z, 0.0) - self.at.get(z, 0.0), z) for z in {**self.at, **target}]
        self.at = target
        self.space.add_([(c, z) for c, z in moves if c != 0.0])

    def back(self) -> None:
        self.to([])


class _Snapshot(Excursion):
    """Writes θ + Σ c_j z_j from a copy of θ, and the copy back at the end. θ never drifts."""

    def __init__(self, space: ParamSpace):
        super().__init__(space)
        with space._timed():
            self.theta = space.take_snapshot()

    def to(self, terms: Terms) -> None:
        with self.space._timed():
            for i, (p, theta) in enumerate(zip(self.space.tensors, self.theta, strict=True)):
                _add_(p, theta, i, terms)

    def back(self) -> None:
        with self.space._timed():
            torch._foreach_copy_(self.space.tensors, self.theta)


class _Nowhere(Excursion):
    """Stays at θ."""

    def to(self, terms: Terms) -> None:
        pass

    def back(self) -> None:
        pass


def _not_decayed(model: nn.Module) -> set[str]:
    """Returns the full names of biases and of all tensors of normalisation layers."""
    found = set()
    for prefix, module in model.named_modules():
        norm = any(kind.__name__.endswith("Norm") for kind in type(module).__mro__)
        for name, _ in module.named_parameters(recurse=False):
            if norm or name == "bias":
                found.add(f"{prefix}.{name}" if prefix else name)
    return found


def _add_(out: Tensor, theta: Tensor, i: int, terms: Terms, decay: float = 0.0) -> None:
    """Writes (1 − decay) theta + Σ c_j z_j, for tensor i, into `out`, which may be `theta`."""
    if out.dtype == torch.float32:
        total = out if out is theta else out.copy_(theta)
    else:
        total = theta.float()
    if decay:
        total.mul_(1.0 - decay)
    for c, z in terms:
        total.add_(z.sample(i, theta), alpha=c)
    if total is not out:
        out.copy_(total)
