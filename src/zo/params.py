"""The trainable tensors of a model and the only code that writes them."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from zo.directions import Direction, fused
from zo.noise import NoiseKey, PhiloxEngine, engine

Terms: TypeAlias = Sequence[tuple[float, Direction]]
"""A displacement: sum of coefficient times direction."""

ROUNDINGS = ("nearest", "stochastic")

RESTORE_POLICIES = ("subtract", "merged", "snapshot")

EXACT = ("snapshot",)
"""Policies under which a probe leaves no trace in θ."""


class ParamSpace:
    """θ: tensors in a fixed order, each storage once, moved along directions in place.

    Args:
        named: Name and tensor pairs. A tensor that shares its storage with an earlier one (tied weights) is left out.
        restore: How θ comes back after a probe. `subtract` subtracts what was added, as the paper's code does: no
            extra memory, and in half precision a drift of about one rounding per probe. `merged` makes the same moves
            with the same roundings, bit for bit, but the last one only together with the next probe's or the update,
            in one pass over the weights; until then the tensors are not θ (see `settle`). `snapshot` copies θ back from
            a copy: exact in every dtype, and twice the memory of θ.
        exempt: Names of the tensors that weight decay leaves alone.
        noise: What draws directions, `torch` or `philox`, see `zo.noise`.
        rounding: How an update is rounded to the tensors' dtype: to `nearest`, or `stochastic`, up or down at random
            such that the mean is right; probes are always rounded to nearest.

    Attributes:
        names: One per tensor.
        parameters: The tensors as given: what backpropagation leaves its gradients in.
        tensors: The same storages without gradient: what is moved.
        decays: Whether weight decay applies, one per tensor.
        restore: As given.
        engine: What draws on the first tensor's device.
        rounding: As given.
        seconds: Time spent in passes over the weights.
        passes: Their number.

    Raises:
        ValueError: On an unknown restore policy, noise or rounding, no tensor at all, or stochastic rounding without
            Philox noise or of a float32 tensor.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, Tensor]],
        restore: str = "subtract",
        exempt: Collection[str] = (),
        noise: str = "torch",
        rounding: str = "nearest",
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
        self.engine = engine(noise, self.tensors[0].device.type)
        self.rounding = rounding
        if rounding not in ROUNDINGS:
            raise ValueError(f"rounding={rounding!r}: must be one of {', '.join(ROUNDINGS)}")
        if rounding == "stochastic" and not isinstance(self.engine, PhiloxEngine):
            raise ValueError("rounding='stochastic': needs noise='philox'")
        if rounding == "stochastic" and any(t.dtype == torch.float32 for t in self.tensors):
            raise ValueError("rounding='stochastic': only bfloat16 and float16 are rounded so")
        self.seconds = 0.0
        self.passes = 0
        self._owed: Terms = ()
        self._snapshot: list[Tensor] | None = None
        self._observed = True

    @classmethod
    def of(
        cls,
        model: nn.Module,
        restore: str = "subtract",
        noise: str = "torch",
        rounding: str = "nearest",
    ) -> "ParamSpace":
        """Returns the space of all parameters of `model` that require gradients, in `named_parameters` order.

        Weight decay leaves alone what its module makes a bias (the attribute `bias`) and all that belongs to a
        normalisation layer: a module one of whose classes is called ...Norm.
        """
        trainable = ((n, p) for n, p in model.named_parameters() if p.requires_grad)
        return cls(trainable, restore, _not_decayed(model), noise, rounding)

    @property
    def numel(self) -> int:
        """n: number of trainable values."""
        return sum(t.numel() for t in self.tensors)

    def add_(self, terms: Terms, decay: float = 0.0, update: NoiseKey | None = None) -> None:
        """Moves θ by Σ c_j z_j in one pass: float32 arithmetic, rounded to the tensors' dtype once.

        Under Philox noise Gaussian terms are drawn in the same pass that adds them. A way back that `restore=merged`
        still owes is made before that, tensor by tensor, and rounded for itself, to nearest.

        Args:
            terms: (c_j, z_j) pairs; an empty sequence adds nothing.
            decay: Share of θ, ≥ 0, that is taken away in the same pass where weight decay applies.
            update: Of an update, the key of the bits that round it if the space rounds at random. A probe has none, and
                is always rounded to nearest.
        """
        if terms or decay or self._owed:
            self.carry_out(_Sum(terms), decay, update)

    def carry_out(
        self, change: "Change", decay: float = 0.0, update: NoiseKey | None = None
    ) -> None:
        """Changes θ and a method's own state in one pass, tensor by tensor, each once it is back at θ.

        Args:
            change: See `Change`.
            decay: As in `add_`.
            update: As in `add_`.
        """
        owed, self._owed = self._owed, ()
        rounding = self._rounding(update)
        with self._pass():
            for i, p in enumerate(self.tensors):
                place = Place(p, i, decay if self.decays[i] else 0.0, rounding)
                if change.fuse(place, owed):
                    continue
                if owed:
                    _add_(p, p, i, owed)
                terms = change.terms(i, p)
                if terms or place.decay:
                    _add_(p, p, i, terms, place.decay, rounding)

    def settle(self) -> None:
        """Makes the move that `restore=merged` still owes, if there is one: the tensors are θ then.

        Outside of `ZOOptimizer.step` nothing is owed.
        """
        self.add_([])

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
        """Lends θ out for probing; on exit θ is back, or its way back is owed, also when the body raises.

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

    def _rounding(self, update: NoiseKey | None) -> "Rounding | None":
        """Returns how an update with this key is rounded; None is to nearest."""
        if update is None or self.rounding == "nearest":
            return None
        assert isinstance(self.engine, PhiloxEngine)
        return Rounding(self.engine, update)

    @contextmanager
    def _pass(self) -> Iterator[None]:
        """Counts a pass over the weights, and its time."""
        self.passes += 1
        with self._timed():
            yield

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Adds the time of a pass over the weights to `seconds`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start


class Change(ABC):
    """What a pass over the weights does to them, and to a method's own state."""

    @abstractmethod
    def terms(self, i: int, p: Tensor) -> Terms:
        """Moves the state that belongs to tensor `i` of θ, `p`, and returns the terms by which that then moves."""

    def fuse(self, at: "Place", back: Terms) -> bool:
        """Makes all of it in one pass over the tensor, where there is one that can.

        Args:
            at: The tensor, which this writes.
            back: By what it first comes back to θ, rounded to nearest; may be empty.

        Returns:
            Whether it was made; if not, nothing has changed.
        """
        return False


@dataclass(frozen=True, eq=False)
class _Sum(Change):
    """θ moves by the same terms everywhere."""

    of: Terms

    def terms(self, i: int, p: Tensor) -> Terms:
        return self.of

    def fuse(self, at: "Place", back: Terms) -> bool:
        before, after = fused(back), fused(self.of)
        if before is None or after is None or before.engine is not after.engine:
            return False
        if before.h is not None or after.h is not None:
            return False
        after.engine.add_(
            at.p, at.p, at.i, after.terms, at.decay, rounding=at.bits, back=before.terms
        )
        return True


class Excursion(ABC):
    """Where θ is during a probe. Only `ParamSpace.excursion` makes one."""

    def __init__(self, space: ParamSpace):
        self.space = space

    @abstractmethod
    def to(self, terms: Terms) -> None:
        """Moves to θ + Σ c_j z_j, counted from θ and not from where the last call left it."""

    @abstractmethod
    def back(self) -> None:
        """Moves back to θ, or leaves that to the next pass."""


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


class _Merged(_Subtract):
    """Moves by differences, too, but leaves the last one to the next pass over the weights."""

    def back(self) -> None:
        if self.at:
            self.space._owed = [(-c, z) for z, c in self.at.items() if c != 0.0]


class _Snapshot(Excursion):
    """Writes θ + Σ c_j z_j from a copy of θ, and the copy back at the end. θ never drifts."""

    def __init__(self, space: ParamSpace):
        super().__init__(space)
        with space._pass():
            self.theta = space.take_snapshot()

    def to(self, terms: Terms) -> None:
        with self.space._pass():
            for i, (p, theta) in enumerate(zip(self.space.tensors, self.theta, strict=True)):
                _add_(p, theta, i, terms)

    def back(self) -> None:
        with self.space._pass():
            torch._foreach_copy_(self.space.tensors, self.theta)


class _Nowhere(Excursion):
    """Stays at θ."""

    def to(self, terms: Terms) -> None:
        pass

    def back(self) -> None:
        pass


_TRIPS: dict[str, type[Excursion]] = {
    "subtract": _Subtract,
    "merged": _Merged,
    "snapshot": _Snapshot,
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


class Rounding(NamedTuple):
    """Rounds at random.

    Attributes:
        engine: What draws the bits.
        key: Their key.
    """

    engine: PhiloxEngine
    key: NoiseKey


class Place(NamedTuple):
    """What a pass changes.

    Attributes:
        p: A tensor of θ.
        i: Its position.
        decay: Share of it, ≥ 0, that is taken away.
        rounding: How it is rounded after the change; None is to nearest.
    """

    p: Tensor
    i: int
    decay: float
    rounding: Rounding | None

    @property
    def bits(self) -> NoiseKey | None:
        """Key of the bits that round it at random, if they do."""
        return None if self.rounding is None else self.rounding.key


def _add_(
    out: Tensor,
    theta: Tensor,
    i: int,
    terms: Terms,
    decay: float = 0.0,
    rounding: Rounding | None = None,
) -> None:
    """Writes (1 − decay) theta + Σ c_j z_j, for tensor i, into `out`, which may be `theta`."""
    if (one := fused(terms)) is not None:
        h = None if one.h is None else one.h[i]
        key = None if rounding is None else rounding.key
        one.engine.add_(out, theta, i, one.terms, decay, scale=h, rounding=key)
        return
    if out.dtype == torch.float32:
        total = out if out is theta else out.copy_(theta)
    else:
        total = theta.float()
    if decay:
        total.mul_(1.0 - decay)
    for c, z in terms:
        total.add_(z.sample(i, theta), alpha=c)
    if rounding is not None:
        rounding.engine.round_(out, total, i, rounding.key)
    elif total is not out:
        out.copy_(total)
