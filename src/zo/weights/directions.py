"""Directions that a zeroth-order method moves along: vectors the size of the model, never stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from zo.noise import DTYPES, Engine, KeyedTerms, Move, NoiseKey, PhiloxEngine, engine

TORCH = engine("torch")
"""The default noise engine."""

BLOCK = 2**16
"""Values that are masked at a time on a CPU, so that they stay in its cache."""


class Direction(Protocol):
    """A vector over all trainable tensors, produced one tensor at a time."""

    def sample(self, i: int, p: Tensor, rows: Tensor | None = None) -> Tensor:
        """Returns the direction's part for tensor `i`: float32, shape and device of `p`.

        Every call with the same `i` returns the same values.

        Args:
            i: Position of the tensor.
            p: The tensor at θ.
            rows: (r,), int64: returns these rows of a matrix alone, (r, columns).
        """
        ...


Terms: TypeAlias = Sequence[tuple[float, Direction]]
"""A displacement: sum of coefficient times direction."""


def at_least_float32(t: Tensor) -> Tensor:
    """Returns a tensor in the dtype that it is computed with: float64 stays, all else is float32."""
    return t if t.dtype == torch.float64 else t.float()


def uncast(device: torch.device) -> AbstractContextManager[None]:
    """While the body runs, a closure's autocast does not round the products that displace weights."""
    if torch.is_autocast_enabled(device.type):
        off: AbstractContextManager[None] = torch.autocast(device.type, enabled=False)
        return off
    return nullcontext()


@dataclass(frozen=True)
class FullSize:
    """An independent value per weight, drawn from a key.

    Attributes:
        key: See `NoiseKey`.
        engine: The noise engine.
    """

    key: NoiseKey
    engine: Engine = TORCH

    signs: ClassVar[bool] = False
    """Whether the values are +1 or −1, and not standard normals."""

    def sample(self, i: int, p: Tensor, rows: Tensor | None = None) -> Tensor:
        """Returns the part for tensor `i`, float32."""
        if rows is not None and isinstance(self.engine, PhiloxEngine):
            some = p.new_empty(len(rows), p.shape[1], dtype=torch.float32)
            return self.engine.draw_(some, self.key, i, self.signs, rows=rows)
        out = torch.empty(p.shape, dtype=torch.float32, device=p.device)
        self.engine.draw_(out, self.key, i, self.signs)
        return out if rows is None else out[rows]


class Gaussian(FullSize):
    """z ~ N(0, I): every entry an independent standard normal."""


class Rademacher(FullSize):
    """Random signs: every entry +1 or −1, independent, with probability ½ each.

    Mean and covariance are those of `Gaussian`. A pass that draws one bit per entry costs little more than reading
    and writing the tensor.
    """

    signs = True


FULL_SIZE: dict[str, type[FullSize]] = {"gaussian": Gaussian, "rademacher": Rademacher}
"""Directions with an independent value per weight, by the name in a method's setting `directions`."""


@dataclass(frozen=True, eq=False)
class Preconditioned:
    """z / √H, entry by entry.

    Attributes:
        z: What is scaled.
        h: H > 0, one tensor per trainable one, of any floating dtype; read at each call, so it must not change while
            the direction is in use.
    """

    z: Direction
    h: Sequence[Tensor]

    def sample(self, i: int, p: Tensor, rows: Tensor | None = None) -> Tensor:
        """Returns z / √H for tensor `i`, float32, or float64 where H is."""
        h = self.h[i] if rows is None else self.h[i][rows]
        return self.z.sample(i, p, rows) / at_least_float32(h).sqrt()


@dataclass(frozen=True, eq=False)
class Masked:
    """z where |θ| is at most a limit, else 0.

    Attributes:
        z: What is masked.
        limits: One number, (), per trainable tensor.
    """

    z: Direction
    limits: Sequence[Tensor]

    def sample(self, i: int, p: Tensor, rows: Tensor | None = None) -> Tensor:
        """Returns the masked part for tensor `i`, where `p` is θ."""
        theta, z = p if rows is None else p[rows], self.z.sample(i, p, rows)
        if isinstance(self.z, Stored):  # whose values may be the state itself
            z = z.clone()
        size = BLOCK if z.device.type == "cpu" else max(z.numel(), 1)
        for part, of in zip(z.view(-1).split(size), theta.reshape(-1).split(size), strict=True):
            part.mul_(of.abs().le_(self.limits[i]))  # 0 and 1 in θ's dtype
        return z


@dataclass(frozen=True, eq=False)
class Stored:
    """A direction whose values are kept, such as a momentum.

    Attributes:
        parts: One tensor per trainable one, by its position; of any floating dtype; read at each call.
    """

    parts: Sequence[Tensor] | Mapping[int, Tensor]

    def sample(self, i: int, p: Tensor, rows: Tensor | None = None) -> Tensor:
        """Returns the values for tensor `i`, float32, or float64 where they are; not a copy where they are float32."""
        part = self.parts[i]
        return at_least_float32(part if rows is None else part[rows])


SHAPES: dict[str, Callable[[torch.Size, int], Sequence[int]]] = {
    "values": lambda shape, rank: shape,
    "rows": lambda shape, rank: (rank, shape[0]),
    "columns": lambda shape, rank: (rank, math.prod(shape[1:])),
    "square": lambda shape, rank: (rank, rank),
    "rank": lambda shape, rank: (rank,),
}
"""Shape of what is drawn for a tensor, by its kind: `values` of tensors with fewer than two dimensions, else others."""

FACTOR_BYTES = 2**26
"""Most bytes that `DrawnFactors` keeps."""

SUMMED_RANK, SUMMED_RANK_SMALL, SMALL = 4, 32, 2**14
"""Largest rank at which a pass that sums outer products takes no longer than a library's matrix products; the same of
tensors of fewer than SMALL values on average, whose products wait for Python."""


class DrawnFactors:
    """Normals of many tensors under one key, drawn together and kept until the next step but one begins.

    Args:
        tensors: θ, or tensors of its shapes and devices.
        engine: The noise engine.
    """

    def __init__(self, tensors: Sequence[Tensor], engine: PhiloxEngine):
        self._tensors, self._engine, self._step = tensors, engine, -1
        self._now: dict[Hashable, dict[int, Tensor]] = {}
        self._before: dict[Hashable, dict[int, Tensor]] = {}
        self._made: dict[Hashable, Any] = {}
        self._sizes: tuple[int, int] | None = None  # rows and columns of matrices, mean values

    def suit_program(self, rank: int) -> bool:
        """Returns whether programs sum the factors of all matrices: they take at most half of the memory."""
        if self._sizes is None:
            shapes = (t.shape for t in self._tensors if t.dim() > 1)
            sides = sum(of[0] + math.prod(of[1:]) for of in shapes)
            values = sum(t.numel() for t in self._tensors)
            self._sizes = sides, values // len(self._tensors)
        sides, mean = self._sizes
        most = SUMMED_RANK_SMALL if mean < SMALL else SUMMED_RANK
        return rank <= most and 4 * rank * sides <= FACTOR_BYTES // 2

    def begin(self, step: int) -> DrawnFactors:
        """Lets go of what was not used in the last step or in this one."""
        if step > self._step:
            self._step, self._before, self._now = step, self._now, {}
            self._made.clear()
        return self

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """Returns what `make` returned when it was first called in this step."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def of(self, key: NoiseKey, kind: str, rank: int) -> Mapping[int, Tensor] | None:
        """Returns the normals of all tensors that have this kind, by position; None if they take too much memory."""
        name = key, kind, rank
        if name not in self._now:
            found = self._before.get(name) or self._drawn(key, kind, rank)
            if found is None:
                return None
            self._now[name] = found
        return self._now[name]

    @torch.inference_mode(False)  # else later passes outside of it could not use them
    def _drawn(self, key: NoiseKey, kind: str, rank: int) -> dict[int, Tensor] | None:
        small, of = kind == "values", SHAPES[kind]
        chosen = [(i, t) for i, t in enumerate(self._tensors) if (t.dim() < 2) == small]
        shapes = {i: tuple(of(t.shape, rank)) for i, t in chosen}
        kept = {**self._before, **self._now}.values()
        held = sum(t.nbytes for normals in kept for t in normals.values())
        if held + 4 * sum(map(math.prod, shapes.values())) > FACTOR_BYTES:
            return None
        found = {i: t.new_empty(shapes[i], dtype=torch.float32) for i, t in chosen}
        if found:
            self._engine.draw_all_([*found.values()], key, [*found])
        return found


@dataclass(frozen=True)
class LowRank:
    """U Vᵀ where a tensor has rows and columns, plain z ~ N(0, I) where it has fewer than two dimensions.

    A tensor with more than two dimensions is its first one (rows) times the product of the others (columns). Entries
    have mean 0 and variance `rank` · `scale`².

    Attributes:
        u: Key of U, (rows, rank), and of z.
        v: Key of V, (columns, rank).
        rank: r ≥ 1.
        scale: Factor of U Vᵀ, not of z.
        engine: The noise engine.
        factors: Draws those of all tensors together, if they are given.
    """

    u: NoiseKey
    v: NoiseKey
    rank: int
    scale: float = 1.0
    engine: Engine = TORCH
    factors: DrawnFactors | None = field(default=None, compare=False, repr=False)

    @property
    def elementwise(self) -> bool:
        """Whether a program computes it: its factors are drawn together, and few enough are summed."""
        return self.factors is not None and self.factors.suit_program(self.rank)

    def sample(self, i: int, p: Tensor, rows: Tensor | None = None) -> Tensor:
        """Returns U Vᵀ, or z, for tensor `i`, float32; not a copy of z."""
        if p.dim() < 2:
            return self.drawn(self.u, i, p, "values")
        left = self.left(i, p)
        out = self.product(left if rows is None else left[:, rows], self.right(i, p))
        if self.scale != 1.0:
            out.mul_(self.scale)
        return out.view(p.shape) if rows is None and out.shape != p.shape else out

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """Returns the product of Uᵀ and Vᵀ, (rows, columns): sums of outer products, term by term."""
        # No matrix product: TF32 or a library would decide its rounding.
        u, v = left.unsqueeze(2).unbind(), right.unbind()
        out = u[0] * v[0]
        for u_r, v_r in zip(u[1:], v[1:], strict=True):
            out.addcmul_(u_r, v_r)
        return out

    @property
    def left_key(self) -> Hashable:
        """Key of U: equal keys mean equal U."""
        return self.u

    def left(self, i: int, p: Tensor) -> Tensor:
        """Returns Uᵀ for tensor `i`, (rank, rows), float32; not a copy."""
        return self.drawn(self.u, i, p, "rows")

    def right(self, i: int, p: Tensor) -> Tensor:
        """Returns Vᵀ for tensor `i`, (rank, columns), float32."""
        return self.drawn(self.v, i, p, "columns")

    def drawn(self, key: NoiseKey, i: int, p: Tensor, kind: str) -> Tensor:
        """Returns the normals of tensor `i` under a key, of the shape of a kind of `SHAPES`, on p's device."""
        if self.factors is not None:
            found = self.factors.of(key, kind, self.rank)
            if found is not None:
                return found[i]
        out = p.new_empty(SHAPES[kind](p.shape, self.rank), dtype=torch.float32)
        return self.engine.draw_(out, key, i)


def restricted(z: Direction, kept: Collection[int], tensors: Sequence[Tensor]) -> Direction:
    """Returns a direction that is z in the tensors at kept positions, and 0 in the others."""
    if not isinstance(z, LowRank):
        limits = [math.inf if i in kept else -1.0 for i in range(len(tensors))]
        pairs = zip(limits, tensors, strict=True)
        return Masked(z, [torch.tensor(limit, device=p.device) for limit, p in pairs])
    kind = type(z)

    def left(self: LowRank, i: int, p: Tensor) -> Tensor:
        return kind.left(self, i, p) * (i in kept)

    def sample(self: LowRank, i: int, p: Tensor, rows: Tensor | None = None) -> Tensor:
        return kind.sample(self, i, p, rows) * (i in kept)

    left_key = frozenset(kept), z.left_key
    body = {"left": left, "sample": sample, "elementwise": False, "left_key": left_key}
    found: LowRank = object.__new__(type("Restricted", (kind,), body))
    vars(found).update(vars(z))
    return found


class Fused(NamedTuple):
    """A displacement that a Philox engine draws and adds in one pass.

    Attributes:
        engine: The engine.
        terms: Coefficients and keys.
        signs: Whether the z_j are `Rademacher`, not `Gaussian`.
        h: H of z / √H, one tensor per trainable one; None without.
        limits: Those of `Masked`; None without.
    """

    engine: PhiloxEngine
    terms: KeyedTerms
    signs: bool
    h: Sequence[Tensor] | None
    limits: Sequence[Tensor] | None

    @property
    def plain(self) -> bool:
        """Whether the z_j are neither scaled nor masked."""
        return self.h is None and self.limits is None

    def move(self, i: int, **more: Any) -> Move:
        """Returns the pass over tensor `i`; `more` are further fields of it."""
        h = None if self.h is None else self.h[i]
        limit = None if self.limits is None else self.limits[i]
        return Move(i, self.terms, scale=h, limit=limit, signs=self.signs, **more)


def fused(terms: Terms, p: Tensor) -> Fused | None:
    """Returns Σ c_j z_j of a tensor as one fused pass, or None.

    All directions must be Gaussian, or all Rademacher, of one Philox engine that supports p's dtype; all may be
    Preconditioned by the same H, or Masked by the same limits.
    """
    if p.dtype not in DTYPES:
        return None
    keyed, kinds, h, limits = list[tuple[float, NoiseKey]](), set[tuple[Any, ...]](), None, None
    for c, z in terms:
        h, limits = getattr(z, "h", None), getattr(z, "limits", None)
        if isinstance(z, (Preconditioned, Masked)):
            z = z.z
        if not isinstance(z, FullSize):
            return None
        keyed.append((c, z.key))
        kinds.add((z.engine, type(z), id(h), id(limits)))
    if len(kinds) != 1:
        return None
    ((engine, kind, *_),) = kinds
    if not isinstance(engine, PhiloxEngine):
        return None
    return Fused(engine, keyed, kind is Rademacher, h, limits)
