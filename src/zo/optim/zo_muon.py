"""ZO-Muon: slopes in a random row subspace of each matrix, and a step along their orthogonalised estimate.

    every `interval` steps, for every matrix of m × n:  P, m × r, orthonormal columns, uniformly random
    f₀ = L(θ);  for i = 1 … N:  Ψ_i ~ N(0, I), r × n;  c_i = (L(θ + ε P Ψ_i) − f₀) / ε     (all matrices at once)
    G = 1/N Σ_i c_i Ψ_i;  W ← W − η (P msign(G) + λ W)         msign(X): X with all singular values 1
    biases and norms: z_i ~ N(0, I) in the same probes;  w ← w − η ρ/N Σ_i c_i z_i        ρ: `vector_lr`

Cost: 1 + N forward passes per step; state: P, m r values of each matrix, float32. Passes over the weights: N + 2
(`restore=subtract`), each a product of two thin matrices; r n normals for a matrix. `msign` is five steps of
Newton-Schulz, whose singular values end between about 0.7 and 1.2, or `svd`, exact. η is the spectral norm of a step.

Source: "Powering Up Zeroth-Order Training via Subspace Gradient Orthogonalization" (ZO-Muon), arXiv 2602.17155, by its
released code's settings; Newton-Schulz coefficients of Jordan et al. 2024, "Muon".

Deviations: P is the same in all N probes of a step; in the released code each sample draws P anew on a step that
refreshes it (docs/reference/deviations.md). Newton-Schulz runs in float32, not in the weights' dtype. P is not scaled
by √(m/r): a probe is √(r/m) of the length of MeZO's. ρ is relative to η, where the released code has a constant 1e-7.
"""

import torch
from torch import Tensor

from zo.optim.base import Coefficients
from zo.optim.config_low_rank import ZOMuonConfig
from zo.optim.lozo import LOZO
from zo.weights.directions import Stored, Terms
from zo.weights.subspaces import RowSubspace, bases
from zo.weights.updates import TensorwiseUpdate

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of a X + b (X Xᵀ) X + c (X Xᵀ)² X."""


def msign(x: Tensor, method: str) -> Tensor:
    """Returns the nearest matrix with orthonormal rows (columns where it is tall), (r, n); zeros stay zeros."""
    norm = x.norm()
    usable = norm.isfinite() & (norm > 0)
    if method == "svd":
        if not usable:
            return x
        u, _, vh = torch.linalg.svd(x.double(), full_matrices=False)
        return torch.mm(u, vh).float()
    wide = x.shape[0] <= x.shape[1]
    y: Tensor = (x if wide else x.mT) / norm
    a, b, c = NEWTON_SCHULZ
    for _ in range(5):
        square = y @ y.mT
        y = a * y + (b * square + c * square @ square) @ y
    return torch.where(usable, y if wide else y.mT, x)  # waits for no device


class ZOMuon(LOZO):
    """W ← W − η P msign(1/N Σ c_i Ψ_i)."""

    config: ZOMuonConfig  # type: ignore[assignment]

    def direction_at(self, step: int, i: int = 0) -> RowSubspace:
        """Returns direction `i` of a step of the current interval."""
        v = self.kept_key(step, 0)
        return self.drawn(RowSubspace, step, i, v, p=self.state["p"])

    def apply(self, coefficients: Coefficients) -> None:
        """W ← W − η (P msign(G) + λ W)."""
        slopes = [
            (c / self.config.n, self.direction_at(self.step_index, i))
            for i, c in enumerate(coefficients)
        ]

        def terms(lr: float, i: int, p: Tensor) -> Terms:
            if p.dim() < 2:
                return [(-lr * self.config.vector_lr * c, z) for c, z in slopes]
            (c, z), *others = slopes
            r = min(z.rank, p.shape[0])  # P has no more columns
            g = z.right(i, p)[:r] * c
            for c, z in others:
                g.add_(z.right(i, p)[:r], alpha=c)
            step = z.product(z.left(i, p)[:r], msign(g, self.config.msign)).view(p.shape)
            return [(-lr, Stored({i: step}))]

        self.apply_update(lambda lr: TensorwiseUpdate(terms, lr))

    def renew_subspace(self) -> None:
        """Draws P of the current interval."""
        key, engine = self.kept_key(self.step_index, 0), self.params.engine
        self.state["p"] = bases(engine, key, self.config.rank, self.params.like)
