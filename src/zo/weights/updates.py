"""What one pass over the weights does to one tensor: a displacement added, or a method's own state moved with it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from zo.noise import NoiseKey, PhiloxEngine
from zo.weights.directions import Terms, fused


class Rounding(NamedTuple):
    """Rounds at random.

    Attributes:
        engine: What draws the bits.
        key: Their key.
    """

    engine: PhiloxEngine
    key: NoiseKey


class UpdateTarget(NamedTuple):
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


class ParameterUpdate(ABC):
    """What a pass over the weights does to them, and to a method's own state."""

    @abstractmethod
    def terms(self, i: int, p: Tensor) -> Terms:
        """Moves the state that belongs to tensor `i` of θ, `p`, and returns the terms by which that then moves."""

    def fuse(self, at: UpdateTarget, back: Terms) -> bool:
        """Makes all of it in one pass over the tensor, where there is one that can.

        Args:
            at: The tensor, which this writes.
            back: By what it first comes back to θ, rounded to nearest; may be empty.

        Returns:
            Whether it was made; if not, nothing has changed.
        """
        return False

    def make(self, at: UpdateTarget, back: Terms) -> None:
        """Changes a tensor, in as few passes over it as there are."""
        if self.fuse(at, back):
            return
        if back:
            add_(at.p, at.p, at.i, back)
        terms = self.terms(at.i, at.p)
        if terms or at.decay:
            add_(at.p, at.p, at.i, terms, at.decay, at.rounding)

    def compensate(self, at: UpdateTarget, back: Terms, residual: Tensor) -> None:
        """Changes a tensor with all that rounding has lost of earlier changes, and keeps what it loses of this one.

        The way back is no update: it is made first, rounded for itself, and what that loses is not kept. Then the
        change is made of p + c in float32, p gets the nearest numbers of its dtype, and c the rest, which is exact:
        p + c is the changed float32 tensor, bit for bit.

        Args:
            at: The tensor p, bfloat16 or float16, rounded to nearest.
            back: By what it first comes back to θ; may be empty.
            residual: c, of p's shape, float32, which this writes.
        """
        if back:
            add_(at.p, at.p, at.i, back)
        total = residual.add_(at.p)
        self.make(at._replace(p=total), ())
        at.p.copy_(total)
        residual.sub_(at.p)


@dataclass(frozen=True, eq=False)
class LinearUpdate(ParameterUpdate):
    """θ moves by the same terms everywhere."""

    of: Terms

    def terms(self, i: int, p: Tensor) -> Terms:
        """Returns the terms."""
        return self.of

    def fuse(self, at: UpdateTarget, back: Terms) -> bool:
        """Makes the way back and the move in one pass where all terms are Gaussian, of one Philox engine."""
        before, after = fused(back), fused(self.of)
        if before is None or after is None or before.engine is not after.engine:
            return False
        if before.h is not None or after.h is not None:
            return False
        after.engine.add_(
            at.p, at.p, at.i, after.terms, at.decay, rounding=at.bits, back=before.terms
        )
        return True


def add_(
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


def add_rows_(out: Tensor, theta: Tensor, i: int, terms: Terms, rows: Tensor) -> None:
    """Writes as `add_` does, but only the rows of the matrix `theta` whose indices, (r,), are given."""
    if (one := fused(terms)) is not None:
        h, some = None if one.h is None else one.h[i], theta.new_empty(len(rows), theta.shape[1])
        one.engine.add_(some, theta, i, one.terms, scale=h, rows=rows)
    else:
        total = theta[rows].float()
        for c, z in terms:
            total.add_(z.sample(i, theta)[rows], alpha=c)
        some = total.to(theta.dtype)
    out.index_copy_(0, rows, some)
