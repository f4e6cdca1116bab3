"""Directions of low rank in subspaces that are kept for a while: U Vᵀ with one factor, or both, fixed."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zo.noise import Engine, NoiseKey, PhiloxEngine
from zo.weights.directions import DrawnFactors, LowRank, Terms
from zo.weights.tensors import TrainableTensors


@dataclass(frozen=True)
class MatrixProduct(LowRank):
    """U Vᵀ by a matrix product: for ranks at which a sum of outer products would take longer than drawing z.

    The product's last bits are those of the device's library.
    """

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """Returns the product of Uᵀ and Vᵀ, (rows, columns)."""
        return left.mT @ right


@dataclass(frozen=True)
class OuterProduct(MatrixProduct):
    """U Vᵀ with both factors drawn for this direction alone; sums of many are one product, see `sum_of_products`."""

    elementwise = False  # type: ignore[assignment]


def sum_of_products(terms: Terms, i: int, p: Tensor, rows: Tensor | None = None) -> Tensor | None:
    """Returns Σ c_j U_j V_jᵀ for a matrix, float32, as one matrix product; None if a term is no `OuterProduct`.

    With `rows`, (r,), it is these rows of the sum alone.
    """
    pairs = [(c, z) for c, z in terms if isinstance(z, OuterProduct)]
    if p.dim() < 2 or not pairs or len(pairs) != len(terms):
        return None
    left = torch.cat([z.left(i, p) * (c * z.scale) for c, z in pairs])
    right = torch.cat([z.right(i, p) for _, z in pairs])
    if rows is not None:
        return left[:, rows].mT @ right
    return (left.mT @ right).view(p.shape)


@dataclass(frozen=True)
class Projected(MatrixProduct):
    """P Z Qᵀ, scaled to entries of variance 1: P and Q kept, Z ~ N(0, I), rank × rank, drawn from `u`.

    Rows and columns are those of the bases: of the tensor itself or, row by row, of its values in another shape.

    Attributes:
        p: Pᵀ of each tensor, (rank, rows), orthonormal rows.
        q: Qᵀ of each tensor, (rank, columns), orthonormal rows.
    """

    p: Sequence[Tensor] = field(default=(), compare=False)
    q: Sequence[Tensor] = field(default=(), compare=False)

    def sample(self, i: int, p: Tensor, rows: Tensor | None = None) -> Tensor:
        """Returns P Z Qᵀ, or z, for tensor `i`, float32."""
        if rows is None or self.p[i].shape[1] == p.shape[0]:
            return super().sample(i, p, rows)
        return super().sample(i, p)[rows]

    def left(self, i: int, p: Tensor) -> Tensor:
        """Returns (P Z)ᵀ √(mn) / r of tensor `i`, (rank, rows)."""
        z = self.drawn(self.u, i, p, "square")
        m, n = self.p[i].shape[1], self.q[i].shape[1]
        scale = (m * n / max(1, min(self.rank, m) * min(self.rank, n))) ** 0.5
        left: Tensor = z.mT @ self.p[i] * scale
        return left

    def right(self, i: int, p: Tensor) -> Tensor:
        """Returns Qᵀ of tensor `i`, (rank, columns)."""
        return self.q[i]


@dataclass(frozen=True)
class RowSubspace(MatrixProduct):
    """P Ψ: P kept, Ψ ~ N(0, I), rank × columns, drawn from `u`.

    Attributes:
        p: Pᵀ of each tensor, (rank, rows), orthonormal rows.
    """

    p: Sequence[Tensor] = field(default=(), compare=False)

    def left(self, i: int, p: Tensor) -> Tensor:
        """Returns Pᵀ of tensor `i`, (rank, rows)."""
        return self.p[i]

    def right(self, i: int, p: Tensor) -> Tensor:
        """Returns Ψ of tensor `i`, (rank, columns)."""
        return self.drawn(self.u, i, p, "columns")


@dataclass(frozen=True)
class Temporal(MatrixProduct):
    """U diag(τ) Vᵀ: U and V drawn from keys that stay, τ ~ N(0, I) of length `rank` from `u`.

    Attributes:
        kept: Key of U.
    """

    kept: NoiseKey = field(kw_only=True)

    def left(self, i: int, p: Tensor) -> Tensor:
        """Returns (U diag(τ))ᵀ of tensor `i`, (rank, rows)."""
        return self.factor(i, p) * self.coefficients(i, p)[:, None]

    def factor(self, i: int, p: Tensor) -> Tensor:
        """Returns Uᵀ of tensor `i`, (rank, rows)."""
        return self.drawn(self.kept, i, p, "rows")

    def coefficients(self, i: int, p: Tensor) -> Tensor:
        """Returns τ of tensor `i`, (rank,), or z where it has fewer than two dimensions."""
        if p.dim() < 2:
            return self.sample(i, p)
        return self.drawn(self.u, i, p, "rank")


@dataclass(frozen=True, eq=False)
class KeptLeft(LowRank):
    """A low-rank direction whose left factor is state: N Vᵀ, and as it is where a tensor is no matrix.

    Attributes:
        of: The direction whose V, rank and product it has.
        parts: Nᵀ of each tensor, (rank, rows), or its values where it is no matrix.
    """

    of: LowRank = field(kw_only=True)
    parts: Sequence[Tensor] = field(kw_only=True)

    @property
    def left_key(self) -> Hashable:
        """The direction itself: N is state."""
        return self

    def sample(self, i: int, p: Tensor, rows: Tensor | None = None) -> Tensor:
        """Returns N Vᵀ, or the values, for tensor `i`, float32."""
        return self.parts[i] if p.dim() < 2 else super().sample(i, p, rows)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """Returns the product as `of` makes it."""
        return self.of.product(left, right)

    def left(self, i: int, p: Tensor) -> Tensor:
        """Returns Nᵀ of tensor `i`, (rank, rows)."""
        return self.parts[i]

    def right(self, i: int, p: Tensor) -> Tensor:
        """Returns Vᵀ of tensor `i`, (rank, columns)."""
        return self.of.right(i, p)


def kept_left(of: LowRank, parts: Sequence[Tensor]) -> KeptLeft:
    """Returns the direction with another left factor."""
    return KeptLeft(of.u, of.v, of.rank, of.scale, of.engine, of.factors, of=of, parts=parts)


def drawn_factors(tensors: TrainableTensors) -> DrawnFactors | None:
    """Returns what draws the factors of all tensors together; None where they are drawn one at a time."""
    if isinstance(tensors.engine, PhiloxEngine) and not (tensors.shards or tensors.offloaded):
        return DrawnFactors(tensors.like, tensors.engine)
    return None


def nearly_square(n: int) -> tuple[int, int]:
    """Returns the divisors of n whose product it is and that are nearest each other, the smaller one first."""
    rows = next((d for d in range(math.isqrt(n), 0, -1) if n % d == 0), 1)
    return rows, n // rows


def bases(
    engine: Engine,
    key: NoiseKey,
    rank: int,
    tensors: Sequence[Tensor],
    of_columns: bool = False,
    square: bool = False,
) -> list[Tensor]:
    """Returns orthonormal rows for every matrix, (rank, length), uniformly random; for others, nothing.

    `length` is the number of its rows, or of its columns; of `nearly_square` where that is asked for. Rows beyond
    `length` are 0. QR of a Gaussian in float64 on the host, the signs of R's diagonal taken out: devices agree on it.
    """
    found = []
    for i, p in enumerate(tensors):
        if p.dim() < 2:
            found.append(p.new_zeros(0, dtype=torch.float32))
            continue
        shape = nearly_square(p.numel()) if square else (p.shape[0], math.prod(p.shape[1:]))
        drawn = engine.draw_(p.new_empty((rank, shape[of_columns]), dtype=torch.float32), key, i)
        q, r = torch.linalg.qr(drawn[: min(drawn.shape)].mT.cpu().double())
        basis = (q * r.diagonal().sign()).mT.float()  # (min(rank, length), length)
        found.append(torch.zeros_like(drawn))
        found[-1][: len(basis)] = basis.to(p.device)
    return found
