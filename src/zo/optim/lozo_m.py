"""LOZO-M: LOZO with a momentum that lives in its subspace.

    V, U and c as LOZO
    N ← β N + (1 − β) c U                        N = c U at the first step
    where V is new:  N ← β N V_oldᵀ V / n + (1 − β) c U      n: columns, so that N keeps its meaning in the new V
    θ ← θ − η (N Vᵀ + λ θ)                       biases and norms, which have no columns: m ← β m + (1 − β) c z

Cost: 2 forward passes per step; state: N, rows × r for a matrix, float32, and m of biases and norms. Passes over the
weights: those of LOZO. Under `restore=factors` as LOZO: one forward pass of two branches, N is added to A.

Source: Chen et al. 2025, "Enhancing Zeroth-Order Fine-Tuning for Language Models with Low-Rank Structures", LOZO-M, in
the order of its released code for masked models.

Deviations: those of LOZO. N is float32. On the step that draws a new V the released code projects with the V of the
step before, as here. With β = 0 it is LOZO.
"""

from dataclasses import replace

import torch

from zo.optim.base import Coefficients
from zo.optim.config_low_rank import LOZOMConfig
from zo.optim.lozo import LOZO
from zo.weights.space import ParameterSpace
from zo.weights.subspaces import kept_left
from zo.weights.updates import LinearUpdate


class LOZOM(LOZO):
    """θ ← θ − η N Vᵀ."""

    config: LOZOMConfig

    def __init__(self, params: ParameterSpace, config: LOZOMConfig, *, lr: float, seed: int):
        super().__init__(params, config, lr=lr, seed=seed)
        self.state["n"] = [
            p.new_zeros((config.rank, p.shape[0]) if p.dim() > 1 else p.shape, dtype=torch.float32)
            for p in params.like
        ]

    def apply(self, coefficients: Coefficients) -> None:
        """Moves N by c U, and θ by −η N Vᵀ."""
        (slope,), z, first = coefficients, self.direction_at(self.step_index), self.step_index == 0
        beta = 0.0 if first else self.config.momentum
        renewed = not first and self.step_index % self.config.interval == 0
        last = self.direction_at(self.step_index - 1) if renewed else None
        for i, (n, p) in enumerate(zip(self.state["n"], self.params.like, strict=True)):
            if last is not None and p.dim() > 1:
                right, old = z.right(i, p), last.right(i, p)  # (r, columns)
                n.copy_((right @ old.mT / right.shape[1]) @ n)
            new = z.left(i, p) if p.dim() > 1 else z.sample(i, p)
            n.mul_(beta).add_(new, alpha=(1 - beta) * slope)
        moved = kept_left(replace(z, scale=self.update_scale), self.state["n"])
        self.apply_update(lambda lr: LinearUpdate([(-lr, moved)]))
