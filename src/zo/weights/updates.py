"""Updates of the weights, each in one pass: a displacement, or a step that updates a method's state, too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zo.noise import DTYPES, Engine, Move, NoiseKey, PhiloxEngine, TensorTable
from zo.weights.directions import Direction, Stored, Terms, at_least_float32, fused

if TYPE_CHECKING:
    from zo.noise.program import Value
    from zo.weights.programs import ProgramValues


class Rounding(NamedTuple):
    """Stochastic rounding.

    Attributes:
        engine: The noise engine of the random bits.
        key: Their key.
    """

    engine: PhiloxEngine
    key: NoiseKey


class UpdateTarget(NamedTuple):
    """A tensor to update.

    Attributes:
        p: A tensor of θ.
        i: Its position.
        decay: Share of it, ≥ 0, that weight decay takes.
        rounding: Stochastic rounding of the result; None is to nearest.
    """

    p: Tensor
    i: int
    decay: float
    rounding: Rounding | None

    @property
    def bits(self) -> NoiseKey | None:
        """Key of the random bits of stochastic rounding; None is to nearest."""
        return None if self.rounding is None else self.rounding.key

    def run_program(
        self, engine: PhiloxEngine, pending: Terms, change: Callable[[ProgramValues, Value], Value]
    ) -> None:
        """Updates the tensor by a program, by `update_program`.

        Raises:
            ValueError: If the engine cannot run it.
        """
        from zo.weights.programs import update_program

        keeps = np.array([1.0 - self.decay], np.float32)
        of = engine, [self.p], [self.i], keeps, pending, self.bits, change
        if not ((at := update_program(*of)) and at.run()):
            raise ValueError(f"tensor {self.i}: it and its state must be contiguous")


@dataclass(frozen=True, eq=False)
class UpdateTargets(Sequence[UpdateTarget]):
    """All tensors of θ, to update together.

    Attributes:
        tensors: θ.
        decays: Whether weight decay applies to each.
        decay: Share of those, ≥ 0, that it takes.
        rounding: As of `UpdateTarget`.
        table: Of passes over all tensors in place, if there is one.
    """

    tensors: Sequence[Tensor]
    decays: Sequence[bool]
    decay: float
    rounding: Rounding | None
    table: TensorTable | None

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, i: Any) -> Any:
        return UpdateTarget(self.tensors[i], i, self.decay * self.decays[i], self.rounding)

    def run_program(self, pending: Terms, change: Callable[[ProgramValues, Value], Value]) -> bool:
        """Updates all tensors by one program, by `update_program`; returns whether it was done."""
        from zo.weights.programs import update_program

        if self.table is None:
            return False
        bits, keeps = self.rounding and self.rounding.key, self.table.keeps(1.0, self.decay)
        positions = range(len(self.tensors))
        of = self.table.engine, self.tensors, positions, keeps, pending, bits, change
        return bool((at := update_program(*of)) and at.run())


class ParameterUpdate(ABC):
    """An update of the weights and of a method's state."""

    @abstractmethod
    def terms(self, i: int, p: Tensor) -> Terms:
        """Updates the method's state of tensor `i`, `p`, and returns the terms of the update of `p`."""

    def change(self, at: ProgramValues, x: Value) -> Value:
        """Updates the method's state of all tensors in a program, and returns what θ, less its decay, is then.

        Raises:
            NotElementwiseError: If no program can do it.
        """
        from zo.weights.programs import NotElementwiseError

        raise NotElementwiseError(type(self).__name__)

    @property
    def along(self) -> Terms:
        """Directions that the update draws, where a program makes it for a single tensor, too; empty: none does."""
        return ()

    def kernel(self, at: UpdateTarget, pending: Terms) -> Callable[[], object] | None:
        """Returns a fused pass that makes the whole update of a contiguous tensor; None if there is none.

        Args:
            at: The tensor.
            pending: A displacement that is added first, rounded to nearest; may be empty.
        """
        one = fused([*pending, *self.along], at.p) if self.along else None
        if one is None or not one.engine.runs_programs:
            return None
        return partial(at.run_program, one.engine, pending, self.change)

    def apply_to_all(
        self, targets: UpdateTargets, pending: Terms, residuals: Sequence[Tensor] | None
    ) -> None:
        """Updates all tensors by one program, if it can, else each as `apply`."""
        if residuals is None and targets.run_program(pending, self.change):
            return
        for at in targets:
            self.apply(at, pending, None if residuals is None else residuals[at.i])

    def apply(self, at: UpdateTarget, pending: Terms, residual: Tensor | None = None) -> None:
        """Updates a tensor, in one fused pass if there is one.

        With a residual c, the compensation term (Kahan), p + c is updated in float32; p is its value rounded to
        nearest and c the exact rounding error. The pending displacement is added to p first, without compensation.

        Args:
            at: The tensor p.
            pending: A displacement that is added first, rounded to nearest; may be empty.
            residual: c, of p's shape, float32, updated in place; None rounds as `at` says.
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
    """Adds the same terms to all tensors."""

    of: Terms

    def terms(self, i: int, p: Tensor) -> Terms:
        """Returns the terms."""
        return self.of

    def apply_to_all(
        self, targets: UpdateTargets, pending: Terms, residuals: Sequence[Tensor] | None
    ) -> None:
        """Updates all tensors, by one call of the engine if it can draw all terms."""
        one = None if residuals is not None else self._fused(targets[0], pending)
        if one is None or targets.table is None or targets.table.engine is not one[0]:
            super().apply_to_all(targets, pending, residuals)
            return
        targets.table.add_(one[1]._replace(keep=1.0), targets.decay)

    def change(self, at: ProgramValues, x: Value) -> Value:
        """As `ParameterUpdate.change`."""
        return at.added(x, self.of)

    def kernel(self, at: UpdateTarget, pending: Terms) -> Callable[[], object] | None:
        """Returns a pass where all terms are Gaussian, or all Rademacher, of one Philox engine."""
        if (one := self._fused(at, pending)) is None:
            return None
        engine, move = one
        return partial(engine.add_, at.p, at.p, move)

    def _fused(self, at: UpdateTarget, pending: Terms) -> tuple[PhiloxEngine, Move] | None:
        """Returns the engine and the pass that adds the pending displacement and then the terms, or None."""
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
    """Adds other terms to each tensor.

    Attributes:
        of: `terms`, of a learning rate.
        lr: The learning rate.
    """

    of: Callable[[float, int, Tensor], Terms]
    lr: float

    def terms(self, i: int, p: Tensor) -> Terms:
        """As `ParameterUpdate.terms`."""
        return self.of(self.lr, i, p)

    def apply_to_all(
        self, targets: UpdateTargets, pending: Terms, residuals: Sequence[Tensor] | None
    ) -> None:
        """Updates all tensors; what is pending is added to all by one call of the engine if it can draw it."""
        if pending:
            tensors = targets.tensors
            add_to_all_(tensors, tensors, range(len(tensors)), pending, targets.table)
        super().apply_to_all(targets, (), residuals)


class TensorValues(NamedTuple):
    """A tensor of θ: what `ElementwiseUpdate` reads and writes, as `ProgramValues` of all tensors.

    Attributes:
        i: Its position.
        p: The tensor.
    """

    i: int
    p: Tensor

    def load(self, state: Sequence[Tensor]) -> Tensor:
        """Returns state of the tensor, at least float32."""
        return at_least_float32(state[self.i])

    def store(self, state: Sequence[Tensor], value: Tensor) -> None:
        """Writes state of the tensor."""
        state[self.i].copy_(value)

    def sum(self, terms: Terms) -> Tensor:
        """Returns Σ c_j z_j."""
        return combined(terms, self.i, self.p)

    def sample(self, z: Direction) -> Tensor:
        """Returns a direction's values."""
        return z.sample(self.i, self.p)

    def move(self, state: Sequence[Tensor], terms: Terms, decay: float) -> Tensor:
        """Moves state in one pass, as `add_`, and returns it."""
        add_(state[self.i], state[self.i], self.i, terms, decay)
        return state[self.i]


@dataclass(frozen=True, eq=False)
class ElementwiseUpdate(ParameterUpdate):
    """Adds a multiple of a function of noise and state at the same position.

    Attributes:
        of: Returns the function's values, of `TensorValues` or `ProgramValues`, and moves the state.
        step: Their factor.
    """

    of: Callable[[Any], Any]
    step: float

    def terms(self, i: int, p: Tensor) -> Terms:
        """Returns the term of tensor `i`."""
        return [(self.step, Stored({i: self.of(TensorValues(i, p))}))]

    def change(self, at: ProgramValues, x: Value) -> Value:
        """As `ParameterUpdate.change`."""
        return x.add(self.of(at), alpha=self.step)


@dataclass(frozen=True, eq=False)
class GroupedUpdate(ParameterUpdate):
    """Another update for each tensor.

    Attributes:
        updates: One per tensor.
        decays: Share of each tensor that weight decay takes.
    """

    updates: Sequence[ParameterUpdate]
    decays: Sequence[float]

    def terms(self, i: int, p: Tensor) -> Terms:
        """Returns the terms of the tensor's own update."""
        return self.updates[i].terms(i, p)

    def apply(self, at: UpdateTarget, pending: Terms, residual: Tensor | None = None) -> None:
        """Applies the tensor's own update."""
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
    _add_sampled_(total, i, theta, terms)
    if rounding is not None:
        rounding.engine.add_(out, total, Move(i, [], rounding=rounding.key))
    elif total is not out:
        out.copy_(total)


def _add_sampled_(
    total: Tensor, i: int, theta: Tensor, terms: Terms, rows: Tensor | None = None
) -> None:
    """Adds Σ c_j z_j, or some rows of it, to a tensor."""
    from zo.weights.subspaces import sum_of_products  # here: fused noise needs none of it

    if (product := sum_of_products(terms, i, theta, rows)) is not None:
        total.add_(product)
        return
    for c, z in terms:
        total.add_(z.sample(i, theta, rows), alpha=c)


_LIKE = torch.empty(0)


def table_of(
    engine: Engine,
    out: Sequence[Tensor],
    theta: Sequence[Tensor],
    positions: Sequence[int] | None = None,
    decays: Sequence[bool] | None = None,
) -> TensorTable | None:
    """Returns the table of passes over tensors, as `PhiloxEngine.table`; None if the engine has no pass over one."""
    if isinstance(engine, PhiloxEngine) and all(t.dtype in DTYPES for t in theta):
        return engine.table(out, theta, positions, decays)
    return None


def shared_move(terms: Terms, engine: Engine) -> Move | None:
    """Returns the pass that adds Σ c_j z_j to any tensors of a table of this engine, or None."""
    one = fused(terms, _LIKE)
    return one.move(0) if one is not None and one.plain and one.engine is engine else None


def add_to_all_(
    out: Sequence[Tensor],
    theta: Sequence[Tensor],
    positions: Sequence[int],
    terms: Terms,
    table: TensorTable | None,
) -> None:
    """Writes theta + Σ c_j z_j of tensors into `out`, by one call of the engine if it can draw all terms.

    Args:
        out: As of `add_`, one per tensor.
        theta: The tensors.
        positions: Of each.
        terms: The displacement.
        table: Of these passes, as `table_of` returns it.
    """
    move = None if table is None else shared_move(terms, table.engine)
    if table is not None and move is not None:
        table.add_(move)
        return
    engines = (getattr(z, "engine", None) for _, z in terms)
    engine = next((found for found in engines if isinstance(found, PhiloxEngine)), None)
    if engine is not None:
        from zo.weights.programs import update_program

        keeps = np.ones(len(theta), np.float32)
        of = engine, theta, positions, keeps, (), None, lambda at, x: at.added(x, terms)
        if (at := update_program(*of, out)) and at.run():
            return
    for to, t, i in zip(out, theta, positions, strict=True):
        add_(to, t, i, terms)


def add_rows_(out: Tensor, theta: Tensor, i: int, terms: Terms, rows: Tensor) -> None:
    """Does what `add_` does for some rows of the matrix `theta`, given by their indices, (r,)."""
    if (one := fused(terms, theta)) is not None:
        some = theta.new_empty(len(rows), theta.shape[1])
        one.engine.add_(some, theta, one.move(i, rows=rows))
    else:
        total = at_least_float32(theta[rows])
        _add_sampled_(total, i, theta, terms, rows)
        some = total.to(theta.dtype)
    out.index_copy_(0, rows, some)


def combined(terms: Terms, i: int, p: Tensor) -> Tensor:
    """Returns Σ c_j z_j for tensor `i`, `p` at θ, in a new tensor: float32, or float64 where a direction is."""
    (c, z), *others = terms
    total = z.sample(i, p) * c
    for c, z in others:
        total.add_(z.sample(i, p), alpha=c)
    return total
