"""The trainable tensors of a model and the only code that writes them."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from zo.directions import Direction, Terms
from zo.factors import Factors

RESTORE_POLICIES = ("subtract", "snapshot", "factors")

EXACT = ("snapshot", "factors")
"""Policies under which a probe leaves no trace in θ."""

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


class ParamSpace:
    """θ: tensors in a fixed order, each storage once, moved along directions in place.

    Args:
        named: Name and tensor pairs. A tensor that shares its storage with an earlier one (tied weights) is left out.
        restore: How θ comes back after a probe. `subtract` subtracts what was added, as the paper's code does: no
            extra memory, and in half precision a drift of about one rounding per probe. `snapshot` copies θ back from
            a copy: exact in every dtype, and twice the memory of θ. `factors` never writes a probe into θ: the
            model's layers compute with directions of low rank beside it, see `zo.factors`; exact in every dtype.
        exempt: Names of the tensors that weight decay leaves alone.
        model: Whose tensors these are; needed, and changed, by `restore=factors`.

    Attributes:
        names: One per tensor.
        parameters: The tensors as given: what backpropagation leaves its gradients in.
        tensors: The same storages without gradient: what is moved.
        decays: Whether weight decay applies, one per tensor.
        restore: As given.
        factors: What θ is beside its tensors under `restore=factors`, else None.
        seconds: Time spent in passes over the weights.

    Raises:
        ValueError: On an unknown restore policy or no tensor at all; on `restore=factors` without a model or with one
            that has a trainable tensor in a layer that cannot compute with factors.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, Tensor]],
        restore: str = "subtract",
        exempt: Collection[str] = (),
        model: nn.Module | None = None,
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
        self.factors: Factors | None = None
        if restore == "factors":
            if model is None:
                raise ValueError("restore=factors: the tensors' model is needed")
            self.factors = Factors(model, self.names, self.tensors)
        self.seconds = 0.0
        self._snapshot: list[Tensor] | None = None
        self._observed = True

    @classmethod
    def of(cls, model: nn.Module, restore: str = "subtract") -> "ParamSpace":
        """Returns the space of all parameters of `model` that require gradients, in `named_parameters` order.

        Weight decay leaves alone what its module makes a bias (the attribute `bias`) and all that belongs to a
        normalisation layer: a module one of whose classes is called ...Norm.
        """
        trainable = ((n, p) for n, p in model.named_parameters() if p.requires_grad)
        return cls(trainable, restore, exempt=_not_decayed(model), model=model)

    @property
    def numel(self) -> int:
        """n: number of trainable values."""
        return sum(t.numel() for t in self.tensors)

    def add_(self, terms: Terms, decay: float = 0.0) -> None:
        """Moves θ by Σ c_j z_j in one pass: float32 arithmetic, rounded to the tensors' dtype once.

        Args:
            terms: (c_j, z_j) pairs; an empty sequence adds nothing.
            decay: Share of θ, ≥ 0, that is taken away in the same pass where weight decay applies.

        Raises:
            ValueError: If θ is to decay under `restore=factors`.
        """
        if decay and self.restore == "factors":
            raise ValueError(
                "weight decay would write every weight at every step: not with factors"
            )
        if terms or decay:
            with self._timed():
                if self.factors is not None:
                    terms = self.factors.add_(terms)
                for i, p in enumerate(self.tensors):
                    if self.factors is None or p.dim() < 2:
                        _add_(p, p, i, terms, decay if self.decays[i] else 0.0)

    def fold(self) -> None:
        """Writes into θ's tensors what `factors` holds beside them, rounded once."""
        if self.factors is not None:
            with self._timed():
                self.factors.fold()

    def parts(self) -> tuple[list[str], list[Tensor]]:
        """Returns names and tensors of all that θ is: its tensors, and what factors hold beside them, if they do."""
        if self.factors is None or not self.factors.look():
            return self.names, self.tensors
        beside = [i for i, p in enumerate(self.tensors) if p.dim() > 1]
        names = [f"{self.names[i]} (factor)" for i in beside]
        return self.names + names, self.tensors + [self.factors.a[i] for i in beside]

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
        names, tensors = self.parts()
        largest = torch.stack([m.float() for m in torch._foreach_norm(tensors, math.inf)])
        if bool(largest.isfinite().all()):  # the only wait for the device where all is well
            return None
        values = zip(names, largest.tolist(), strict=True)
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
            trip = _TRIPS[self.restore](self)
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

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Adds the time of a pass over the weights to `seconds`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start


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

    def losses(self, loss_fn: LossFn, places: Sequence[Terms]) -> list[float]:
        """Returns the losses at θ + Σ c_j z_j of each of `places`, in their order; θ stays at one of them."""
        found = []
        for terms in places:
            self.to(terms)
            found.append(loss_fn())
        return found


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
        self.home = True
        with space._timed():
            self.theta = space.take_snapshot()

    def to(self, terms: Terms) -> None:
        if self.home and not terms:
            return
        self.home = False
        with self.space._timed():
            for i, (p, theta) in enumerate(zip(self.space.tensors, self.theta, strict=True)):
                _add_(p, theta, i, terms)

    def back(self) -> None:
        with self.space._timed():
            torch._foreach_copy_(self.space.tensors, self.theta)


class _Beside(Excursion):
    """Lets the layers compute at one place, or at all places at once."""

    def __init__(self, space: ParamSpace):
        super().__init__(space)
        assert space.factors is not None
        self.factors = space.factors

    def to(self, terms: Terms) -> None:
        self._go([terms])

    def losses(self, loss_fn: LossFn, places: Sequence[Terms]) -> list[float]:
        if isinstance(loss_fn, BranchedLoss):
            self._go(places)
            found = loss_fn.branches(len(places))
        else:
            found = super().losses(loss_fn, places)
        self.factors.check()
        return found

    def back(self) -> None:
        self.factors.back()

    def _go(self, places: Sequence[Terms]) -> None:
        with self.space._timed():
            self.factors.go(places)


class _Nowhere(Excursion):
    """Stays at θ."""

    def to(self, terms: Terms) -> None:
        pass

    def back(self) -> None:
        pass


_TRIPS: dict[str, type[Excursion]] = {
    "subtract": _Subtract,
    "snapshot": _Snapshot,
    "factors": _Beside,
}


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
