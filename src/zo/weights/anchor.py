"""A pull towards the start, made in an update's float32 result, and what rounding leaves of an update."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zo.noise import Move
from zo.weights.directions import Terms, at_least_float32
from zo.weights.updates import ParameterUpdate, UpdateTarget, add_


class StartWeights:
    """θ₀: tensors as they were when this was made, on the host or in a file.

    Args:
        tensors: θ.
        kept: Positions of the tensors that will be asked for; None is all.
        rereads: Position -> function that reads the tensor again where it came from. The others are copied to the host.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        kept: Collection[int] | None = None,
        rereads: Mapping[int, Callable[[], Tensor]] | None = None,
    ):
        self._rereads = dict(rereads or {})
        self._copies: dict[int, Tensor] = {}
        for i in range(len(tensors)) if kept is None else kept:
            if i not in self._rereads:
                copy = tensors[i].to("cpu", copy=True)
                self._copies[i] = copy.pin_memory() if tensors[i].is_cuda else copy

    def of(self, i: int, like: Tensor) -> Tensor:
        """Returns tensor `i` in the dtype and on the device of another; not to be written to."""
        held = self._rereads[i]() if i in self._rereads else self._copies[i]
        return held.to(like.device, like.dtype, non_blocking=True)


@dataclass(frozen=True, eq=False)
class Anchor:
    """Moves θ towards θ₀: by a share of the distance (L2), or each value by at most a length (L1).

    Attributes:
        start: θ₀.
        shares: ηλ of each tensor.
        l1: Whether the distance's absolute value shrinks by ηλ, and not the distance by its share ηλ.
    """

    start: StartWeights
    shares: Sequence[float]
    l1: bool

    @torch.inference_mode()  # the memory that offloaded tensors are brought to is of that kind
    def pull_(self, i: int, theta: Tensor) -> None:
        """Moves tensor `i`, float32 or float64, in place."""
        start, share = self.start.of(i, theta), self.shares[i]
        if self.l1:
            theta.sub_((theta - start).clamp_(-share, share))
        else:
            theta.lerp_(start, min(share, 1.0))


@dataclass
class Survival:
    """Measures how much of an update is left in half-precision weights after rounding.

    Attributes:
        watched: Positions of the tensors that are looked at.
        seen: Of each tensor, Σ of intended times actual move and Σ of intended moves, squared.
    """

    watched: Collection[int]
    seen: dict[int, tuple[float, float]] = field(default_factory=dict)

    def see(self, i: int, before: Tensor, intended: Tensor, after: Tensor) -> None:
        """Adds tensor `i`: before the update, its float32 result, and that rounded."""
        was = before.float()
        move = intended - was
        actual = float((move * (after.float() - was)).sum(dtype=torch.float64))
        self.seen[i] = actual, float(move.square_().sum(dtype=torch.float64))

    @property
    def share(self) -> float | None:
        """Length of the actual move along the intended one, over that one's; None if nothing was to move."""
        actual, intended = (
            math.fsum(sums) for sums in zip((0.0, 0.0), *self.seen.values(), strict=True)
        )
        return actual / intended if intended else None


@dataclass(frozen=True, eq=False)
class SeenUpdate(ParameterUpdate):
    """An update whose float32 result is changed, or looked at, before it is rounded.

    Attributes:
        update: The update.
        anchor: Moves its result towards θ₀; None does not.
        survival: Looks at the rounding; None does not.
    """

    update: ParameterUpdate
    anchor: Anchor | None = None
    survival: Survival | None = field(default=None)

    def terms(self, i: int, p: Tensor) -> Terms:
        """Returns the terms of the update."""
        return self.update.terms(i, p)

    def apply_to_all(
        self, targets: Sequence[UpdateTarget], pending: Terms, residuals: Sequence[Tensor] | None
    ) -> None:
        """Updates all tensors; where nothing is rounded, as the update does itself."""
        if self.anchor is None or any(at.p.dtype.itemsize < 4 for at in targets):
            super().apply_to_all(targets, pending, residuals)
            return
        self.update.apply_to_all(targets, pending, residuals)
        for at in targets:
            self.anchor.pull_(at.i, at.p)

    @torch.inference_mode()
    def apply(self, at: UpdateTarget, pending: Terms, residual: Tensor | None = None) -> None:
        """Updates a tensor in float32, and rounds it once, as `ParameterUpdate.apply`."""
        watched = self.survival is not None and at.i in self.survival.watched
        if self.anchor is None and not watched:
            self.update.apply(at, pending, residual)
            return
        if pending:
            add_(at.p, at.p, at.i, pending)
        before = at.p.clone() if watched else at.p
        wide = at_least_float32(at.p) if residual is None else residual.add_(at.p)
        self.update.apply(at._replace(p=wide, rounding=None), ())
        if self.anchor is not None:
            self.anchor.pull_(at.i, wide)
        if at.rounding is not None:
            at.rounding.engine.add_(at.p, wide, Move(at.i, [], rounding=at.rounding.key))
        elif wide is not at.p:
            at.p.copy_(wide)
        if self.survival is not None and watched:
            self.survival.see(at.i, before, wide, at.p)
        if residual is not None:
            residual.sub_(at.p)


LOW_SURVIVAL = 0.5
"""Share of a step below which people are told what rounding takes."""

WATCHED = 8
"""Matrices of whose updates the rounding is looked at: the cost of about two more passes over these."""


def watched(matrices: Sequence[bool], tensors: Sequence[Tensor]) -> set[int]:
    """Returns some of the matrices in half precision, at equal distances; of a model without any, of its tensors."""
    half = [i for i, t in enumerate(tensors) if t.dtype.itemsize < 4]
    found = [i for i in half if matrices[i]] or half
    return set(found[:: math.ceil(len(found) / WATCHED)]) if found else set()
