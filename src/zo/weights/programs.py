"""Displacements and updates as programs: the noise, θ and a method's state of all tensors, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zo.noise import Engine, NoiseKey, PhiloxEngine, PreparedProgram
from zo.noise.program import Program, Value
from zo.weights.directions import Direction, FullSize, LowRank, Preconditioned, Stored, Terms, fused

LIKE = torch.empty(0)


class NotElementwiseError(TypeError):
    """A direction is no function of noise, θ and state at the same position."""


class ProgramValues:
    """What a program reads and writes; see `TensorValues`, which does the same tensor by tensor.

    Args:
        engine: Runs the program.
        tensors: θ.
        positions: Of the tensors.
        keeps: 1 − decay of each, (tensors,), float32.

    Attributes:
        program: The program.
        lists: Its lists of tensors.
    """

    def __init__(
        self,
        engine: PhiloxEngine,
        tensors: Sequence[Tensor],
        positions: Sequence[int],
        keeps: Any,
    ):
        self.engine, self.tensors, self.positions = engine, tensors, positions
        self.program, self._keeps = Program(), keeps
        self._products: dict[LowRank, Value] = {}
        self._given: list[Any] = []
        self.lists: list[Sequence[Tensor]] = []

    def run(self) -> bool:
        """As `PhiloxEngine.run`."""
        return self.engine.run(self.program, self.lists, self.positions, self._keeps)

    def array(self, of: Any, all_of: bool = True) -> int:
        """Returns the position among the program's lists of tensors that are given by their position in θ.

        Args:
            of: The tensors.
            all_of: Whether they are of all positions; else those of `positions`.
        """
        for found, given in enumerate(self._given):
            if given is of:
                return found
        self._given.append(of)
        found, tensors = len(self.lists), [of[i] for i in self.positions] if all_of else of
        self.lists.append(tensors)
        self.program.unrounded |= {found} - {found for t in tensors if t.dtype != torch.float32}
        return found

    def load(self, state: Sequence[Tensor]) -> Value:
        """Returns tensors' values, float32."""
        return self.program.read(self.array(state))

    def store(self, state: Sequence[Tensor], value: Value) -> None:
        """Writes a value into tensors, rounded to nearest."""
        self.program.write(self.array(state), value)

    def sum(self, terms: Terms) -> Value:
        """Returns Σ c_j z_j, as `combined`."""
        (c, z), *others = terms
        total = self.sample(z).mul(c)
        for c, z in others:
            total = total.add(self.sample(z), alpha=c)
        return total

    def move(self, state: Sequence[Tensor], terms: Terms, decay: float) -> Value:
        """Returns state that is moved by (1 − decay) state + Σ c_j z_j, as `add_`, and keeps it."""
        at = self.array(state)
        moved = self.added(self.program.read(at).mul(1.0 - decay), terms).rounded(at)
        self.program.write(at, moved)
        return moved

    def added(self, x: Value, terms: Terms) -> Value:
        """Returns x + Σ c_j z_j, rounded as `add_` rounds: products of noise alone before their sums."""
        one = fused(terms, LIKE)
        for c, z in terms:
            z_j = self.sample(z)
            x = x.add(z_j, alpha=c) if one is None else x.plus(z_j, c)
        return x

    def sample(self, z: Direction) -> Value:
        """Returns a direction's values.

        Raises:
            NotElementwiseError: If it is not a function of each position alone, or of another engine.
        """
        if isinstance(z, FullSize) and z.engine is self.engine:
            return self.program.draw(z.key, z.signs)
        if isinstance(z, Stored):
            return self.load(z.parts)  # type: ignore[arg-type]
        if isinstance(z, LowRank) and z.elementwise and z.engine is self.engine:
            return self._low_rank(z)
        if isinstance(z, Preconditioned):
            return self.sample(z.z).div(self.load(z.h).sqrt())
        raise NotElementwiseError(type(z).__name__)

    def _low_rank(self, z: LowRank) -> Value:
        assert z.factors is not None  # else it is not elementwise
        if z not in self._products:
            left, right = z.factors.once((z, tuple(self.positions)), lambda: self._factors(z))
            u, v = self.array(left, all_of=False), self.array(right, all_of=False)
            self._products[z] = self.program.outer(u, v, z.rank, z.scale)
        return self._products[z]

    def _factors(self, z: LowRank) -> tuple[list[Tensor], list[Tensor]]:
        """Returns Uᵀ and Vᵀ of matrices, and the values of the other tensors beside an empty one."""
        left, right, none = list[Tensor](), list[Tensor](), torch.empty(0)
        for i, p in zip(self.positions, self.tensors, strict=True):
            left.append(z.left(i, p) if p.dim() > 1 else z.sample(i, p))
            right.append(z.right(i, p) if p.dim() > 1 else none)
        return left, right


def update_program(
    engine: PhiloxEngine,
    tensors: Sequence[Tensor],
    positions: Sequence[int],
    keeps: Any,
    pending: Terms,
    bits: NoiseKey | None,
    change: Callable[[ProgramValues, Value], Value],
    out: Sequence[Tensor] | None = None,
) -> ProgramValues | None:
    """Returns the program that updates tensors; None if none can.

    Args:
        engine: Runs it.
        tensors: θ.
        positions: Of each.
        keeps: 1 − decay of each, (tensors,), float32.
        pending: A displacement that is added first, rounded to nearest; may be empty.
        bits: Key of stochastic rounding; None is to nearest.
        change: Returns what θ is, of keep · θ.
        out: Where the result is written; None is in place.
    """
    at = ProgramValues(engine, tensors, positions, keeps)
    try:
        theta = at.array(tensors, all_of=False)
        x = at.program.read(theta)
        if pending:
            x = at.added(x, pending).rounded(theta)
        x = change(at, x if (keeps == 1).all() else x.mul(at.program.keep()))
        to = theta if out is None else at.array(out, all_of=False)
    except NotElementwiseError:
        return None
    at.program.write(to, x, bits)
    return at


def prepare_displacement(
    engine: Engine, tensors: Sequence[Tensor], terms: Terms
) -> PreparedProgram | None:
    """Prepares a program that writes θ + Σ c_j z_j of some tensors at a time; None if there is none."""
    if not isinstance(engine, PhiloxEngine):
        return None
    keeps, change = np.ones(len(tensors), np.float32), partial(ProgramValues.added, terms=terms)
    of = engine, tensors, range(len(tensors)), keeps, (), None, change
    at = update_program(*of, out=[*tensors])
    return None if at is None else engine.prepare(at.program, at.lists, at.positions, keeps)
