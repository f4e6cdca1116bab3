"""What one pass over the weights does to one tensor: adds a displacement, or moves a method's own state with it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zo.noise import DTYPES, Move, NoiseKey, PhiloxEngine
from zo.weights.directions import Terms, at_least_float32, fused
from zo.weights.subspaces import sum_of_products


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
    """What an update does to the weights and to a method's own state."""

    @abstractmethod
    def terms(self, i: int, p: Tensor) -> Terms:
        """Moves the state that belongs to tensor `i` of θ, `p`, and returns the terms by which `p` then moves."""

    def kernel(self, at: UpdateTarget, pending: Terms) -> Callable[[], object] | None:
        """Returns the whole update of a contiguous tensor as one pass over it; None if there is none.

        Args:
            at: The tensor, which the pass writes.
            pending: A displacement that is added first, rounded to nearest; may be empty.
        """
        return None

    def apply_to_all(
        self, targets: Sequence[UpdateTarget], pending: Terms, residuals: Sequence[Tensor] | None
    ) -> None:
        """Updates all tensors, each as `apply`."""
        for at in targets:
            self.apply(at, pending, None if residuals is None else residuals[at.i])

    def apply(self, at: UpdateTarget, pending: Terms, residual: Tensor | None = None) -> None:
        """Updates a tensor in as few passes over it as there are.

        With a residual c, the update is made of p + c in float32, p gets the nearest numbers of its dtype, and c the
        rest, which is exact: p + c is the updated float32 tensor, bit for bit. The pending displacement is no update:
        it is added to p first, and what its rounding loses is not kept.

        Args:
            at: The tensor p.
            pending: A displacement that is added first, rounded to nearest; may be empty.
            residual: c, of p's shape, float32, which this writes; None rounds as `at` says.
        """
        if residual is not None:
            if pending:
                add_(at.p, at.p, at.i, pending)
            total = residual.add_(at.p)
            self.apply(at._replace(p=total), ())
            at.p.copy_(total)
            residual.sub_(at.p)
            return
        one_pass = self.kernel(at, pending) if at.p.is_contiguous() else None
        if one_pass is not None:
            one_pass()
            return
        if pending:
            add_(at.p, at.p, at.i, pending)
        terms = self.terms(at.i, at.p)
        if terms or at.decay:
            add_(at.p, at.p, at.i, terms, at.decay, at.rounding)


@dataclass(frozen=True, eq=False)
class LinearUpdate(ParameterUpdate):
    """θ moves by the same terms everywhere."""

    of: Terms

    def terms(self, i: int, p: Tensor) -> Terms:
        """Returns the terms."""
        return self.of

    def apply_to_all(
        self, targets: Sequence[UpdateTarget], pending: Terms, residuals: Sequence[Tensor] | None
    ) -> None:
        """Updates all tensors, by one call of the engine where it draws all terms in the pass."""
        first, tensors = targets[0], [at.p for at in targets]
        one = None if residuals is not None else self._fused(first, pending)
        if one is None or not all(p.dtype in DTYPES for p in tensors):
            super().apply_to_all(targets, pending, residuals)
            return
        engine, move = one
        engine.add_to_all_(tensors, tensors, move, [1.0 - at.decay for at in targets])

    def kernel(self, at: UpdateTarget, pending: Terms) -> Callable[[], object] | None:
        """Returns a pass where all terms are Gaussian, or all Rademacher, of one Philox engine."""
        if (one := self._fused(at, pending)) is None:
            return None
        engine, move = one
        return partial(engine.add_, at.p, at.p, move)

    def _fused(self, at: UpdateTarget, pending: Terms) -> tuple[PhiloxEngine, Move] | None:
        """Returns the pass over a tensor that adds what is pending and then the terms, and who makes it; or None."""
        then = fused(self.of, at.p)
        if then is None or not then.plain:
            return None
        more: dict[str, Any] = {"keep": 1.0 - at.decay, "rounding": at.bits}
        if pending:
            before = fused(pending, at.p)
            if before is None or before._replace(terms=then.terms) != then:
                return None
            more["pending"] = before.terms
        return then.engine, then.move(at.i, **more)


@dataclass(frozen=True, eq=False)
class TensorwiseUpdate(ParameterUpdate):
    """Each tensor moves by terms of its own.

    Attributes:
        of: `terms`.
    """

    of: Callable[[int, Tensor], Terms]

    def terms(self, i: int, p: Tensor) -> Terms:
        """As `ParameterUpdate.terms`."""
        return self.of(i, p)


@dataclass(frozen=True, eq=False)
class GroupedUpdate(ParameterUpdate):
    """An update of its own for every tensor.

    Attributes:
        updates: One per tensor.
        decays: Share of each tensor that is taken away.
    """

    updates: Sequence[ParameterUpdate]
    decays: Sequence[float]

    def terms(self, i: int, p: Tensor) -> Terms:
        """Returns the terms of the tensor's own update."""
        return self.updates[i].terms(i, p)

    def apply(self, at: UpdateTarget, pending: Terms, residual: Tensor | None = None) -> None:
        """Makes the tensor's own update."""
        self.updates[at.i].apply(at._replace(decay=self.decays[at.i]), pending, residual)


def add_(
    out: Tensor,
    theta: Tensor,
    i: int,
    terms: Terms,
    decay: float = 0.0,
    rounding: Rounding | None = None,
) -> None:
    """Writes (1 − decay) theta + Σ c_j z_j, for tensor i, into `out`, which may be `theta`."""
    if (one := fused(terms, theta)) is not None:
        key = None if rounding is None else rounding.key
        one.engine.add_(out, theta, one.move(i, keep=1.0 - decay, rounding=key))
        return
    if out.dtype in (torch.float32, torch.float64):
        total = out if out is theta else out.copy_(theta)
    else:
        total = theta.float()
    if decay:
        total.mul_(1.0 - decay)
    if (product := sum_of_products(terms, i, theta)) is not None:
        total.add_(product)
    else:
        for c, z in terms:
            total.add_(z.sample(i, theta), alpha=c)
    if rounding is not None:
        rounding.engine.add_(out, total, Move(i, [], rounding=rounding.key))
    elif total is not out:
        out.copy_(total)


def add_to_all_(out: Sequence[Tensor], theta: Sequence[Tensor], terms: Terms) -> None:
    """Writes theta + Σ c_j z_j of all tensors into `out`, by one call of the engine where it draws all terms."""
    one = fused(terms, theta[0])
    if one is not None and one.plain and all(t.dtype in DTYPES for t in theta):
        one.engine.add_to_all_(out, theta, one.move(0))
        return
    for i, (to, t) in enumerate(zip(out, theta, strict=True)):
        add_(to, t, i, terms)


def add_rows_(out: Tensor, theta: Tensor, i: int, terms: Terms, rows: Tensor) -> None:
    """Writes as `add_` does, but only the rows of the matrix `theta` whose indices, (r,), are given."""
    if (one := fused(terms, theta)) is not None:
        some = theta.new_empty(len(rows), theta.shape[1])
        one.engine.add_(some, theta, one.move(i, rows=rows))
    else:
        total = at_least_float32(theta[rows])
        if (product := sum_of_products(terms, i, theta, rows)) is not None:
            total.add_(product)
        else:
            for c, z in terms:
                total.add_(z.sample(i, theta, rows), alpha=c)
        some = total.to(theta.dtype)
    out.index_copy_(0, rows, some)


def combined(terms: Terms, i: int, p: Tensor) -> Tensor:
    """Returns Σ c_j z_j for tensor `i`, `p` at θ, in a tensor of its own: float32, or float64 where a direction is."""
    (c, z), *others = terms
    total = z.sample(i, p) * c
    for c, z in others:
        total.add_(z.sample(i, p), alpha=c)
    return total
