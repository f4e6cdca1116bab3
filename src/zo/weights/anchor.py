"""The start weights: an anchor to them, the distance from them. How much of an update survives rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zo.noise import Move
from zo.weights.directions import Terms, at_least_float32
from zo.weights.updates import ParameterUpdate, UpdateTarget, UpdateTargets, add_

if TYPE_CHECKING:
    from zo.weights.space import ParameterSpace


class StartWeights:
    """θ₀: copies of tensors on the host, or their files.

    Args:
        tensors: θ.
        kept: Positions of the tensors that `of` will return.
        rereads: Position -> function that reads the tensor from its file again. The others are copied to the host.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        kept: Collection[int],
        rereads: Mapping[int, Callable[[], Tensor]],
    ):
        self._rereads, self._copies = dict(rereads), dict[int, Tensor]()
        for i in kept:
            if i not in self._rereads:
                copy = tensors[i].to("cpu", copy=True)
                self._copies[i] = copy.pin_memory() if tensors[i].is_cuda else copy

    def of(self, i: int, like: Tensor) -> Tensor:
        """Returns tensor `i` in the dtype and on the device of another; read-only."""
        held = self._rereads[i]() if i in self._rereads else self._copies[i]
        return held.to(like.device, like.dtype, non_blocking=True)


@dataclass(frozen=True, eq=False)
class Anchor:
    """Moves θ towards θ₀: by a share of the distance (L2), or by soft thresholding (L1).

    Attributes:
        start: θ₀.
        shares: ηλ of each tensor.
        l1: Whether the absolute distance shrinks by ηλ, and not the distance by the share ηλ.
    """

    start: StartWeights
    shares: Sequence[float]
    l1: bool

    @torch.inference_mode()  # offloaded tensors are inference tensors on the device
    def pull_(self, i: int, theta: Tensor) -> None:
        """Moves tensor `i`, float32 or float64, in place."""
        start, share = self.start.of(i, theta), self.shares[i]
        if self.l1:
            theta.sub_((theta - start).clamp_(-share, share))
        else:
            theta.lerp_(start, min(share, 1.0))


@dataclass
class Survival:
    """Measures how much of an update survives the rounding to half precision.

    Attributes:
        watched: Positions of the measured tensors.
        seen: Of each tensor, Σ intended · actual move and Σ intended move².
    """

    watched: Collection[int]
    seen: dict[int, tuple[float, float]] = field(default_factory=dict)

    def see(self, i: int, before: Tensor, intended: Tensor, after: Tensor) -> None:
        """Adds tensor `i`: before the update, its float32 result, and the rounded result."""
        was = before.float()
        move = intended - was
        actual = float((move * (after.float() - was)).sum(dtype=torch.float64))
        self.seen[i] = actual, float(move.square_().sum(dtype=torch.float64))

    @property
    def share(self) -> float | None:
        """Projection of the actual move on the intended one, over its length; None if that is 0."""
        actual, intended = map(math.fsum, zip((0.0, 0.0), *self.seen.values(), strict=True))
        return actual / intended if intended else None


@dataclass(frozen=True, eq=False)
class SeenUpdate(ParameterUpdate):
    """An update whose float32 result is anchored or measured before it is rounded.

    Attributes:
        update: The update.
        anchor: Moves the result towards θ₀, if given.
        survival: Measures the rounding, if given.
    """

    update: ParameterUpdate
    anchor: Anchor | None = None
    survival: Survival | None = field(default=None)

    def terms(self, i: int, p: Tensor) -> Terms:
        """Returns the terms of the update."""
        return self.update.terms(i, p)

    def apply_to_all(
        self, targets: UpdateTargets, pending: Terms, residuals: Sequence[Tensor] | None
    ) -> None:
        """Updates all tensors; in float32 and float64 by the update's own pass."""
        if self.anchor is None or any(at.p.dtype.itemsize < 4 for at in targets):
            super().apply_to_all(targets, pending, residuals)
            return
        self.update.apply_to_all(targets, pending, residuals)
        for at in targets:
            self.anchor.pull_(at.i, at.p)

    @torch.inference_mode()
    def apply(self, at: UpdateTarget, pending: Terms, residual: Tensor | None = None) -> None:
        """Updates a tensor in float32 and rounds it once, as `ParameterUpdate.apply`."""
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
"""Share of a step; if less survives rounding, a message says so."""

WATCHED = 8
"""Matrices whose rounding is measured, at the cost of about two more passes over them."""


def watched(matrices: Sequence[bool], tensors: Sequence[Tensor]) -> set[int]:
    """Returns evenly spaced positions of half-precision matrices, or of tensors if there is no matrix."""
    half = [i for i, t in enumerate(tensors) if t.dtype.itemsize < 4]
    found = [i for i in half if matrices[i]] or half
    return set(found[:: math.ceil(len(found) / WATCHED)]) if found else set()


def rounding_notice(share: float, rounding: str, dtype: torch.dtype) -> str:
    """Returns a notice if less than half of a step survives rounding to nearest, else an empty text."""
    if share >= LOW_SURVIVAL or rounding != "nearest":
        return ""
    return f"{share:.0%} of the step is left after rounding to {dtype}"


ENTRIES = 2**14
"""Entries that are kept of a tensor. For a dense move of n larger tensors the error is about 1 % / √n."""


class Drift:
    """Measures ‖θ − θ₀‖² by kept entries of θ₀.

    Costs 12 bytes per kept entry, and one gather at each call of `squares`.

    Args:
        params: θ, at the start.
    """

    def __init__(self, params: ParameterSpace):
        self._params = params
        generator = torch.Generator().manual_seed(0)
        self._indices: list[Tensor] = []
        for t in params.settled():
            large = t.numel() > ENTRIES
            chosen = torch.randint(t.numel(), (ENTRIES,), generator=generator, device="cpu")
            self._indices.append(
                chosen.to(t.device) if large else torch.arange(t.numel(), device=t.device)
            )
        self._start = self._entries()

    def squares(self) -> list[float]:
        """Returns ‖θ − θ₀‖² of each tensor, of a sharded one of the local part."""
        found = []
        for t, now, start in zip(self._params.settled(), self._entries(), self._start, strict=True):
            square = (now - start).double().square().sum()
            found.append(float(square) * t.numel() / max(len(start), 1))
        return found

    def _entries(self) -> list[Tensor]:
        policy = self._params.policy
        return [policy.entries(i, index) for i, index in enumerate(self._indices)]
