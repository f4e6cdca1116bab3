"""Sparse-MeZO: MeZO on the weights that are small, whose mask follows θ and is never stored.

    h_p = the `share` quantile of |θ_p| at the start, one number per matrix p;  ∞ where p is not masked
    mask = |θ| ≤ h;  z_i ~ N(0, I)
    c_i = (L(θ + ε mask z_i) − L(θ − ε mask z_i)) / 2ε
    θ ← θ − η (1/n Σ_i c_i mask z_i + λ θ)        λ: `weight_decay`, not on biases and norms, of all weights

Masked are 2-D weights of neither embeddings nor norms; all else moves as in MeZO. `scope=all` masks every tensor.

Cost: 2n forward passes per step; state: h, one number per tensor. Passes over the weights: those of MeZO;
under Philox noise each makes the mask on the way.

Source: Liu et al. 2024, "Sparse MeZO: Less Parameters for Better Performance in Zeroth-Order LLM Fine-Tuning".

Deviations: those of MeZO. The official code could not be read; `share` of 0.25 and what is masked are those of a
public re-implementation (GRZO's). A matrix whose quantile is 0, as LoRA's B at the start, moves freely: its mask would
be empty after one step. A mask is made of the θ that a step begins with, in both probes and in the update, so probes
must leave θ readable: `restore=streamed` or `snapshot`. Taken from displaced weights it would differ between + ε and
− ε. Of tensors without a model, every 2-D one is a matrix.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from zo.optim.base import Coefficients
from zo.optim.config_spsa import SparseMeZOConfig
from zo.optim.mezo import MeZO
from zo.weights.directions import Masked, Stored, Terms, fused
from zo.weights.sharded import whole
from zo.weights.space import ParameterSpace
from zo.weights.updates import ParameterUpdate, UpdateTarget, add_, combined


@dataclass(frozen=True, eq=False)
class MaskedUpdate(ParameterUpdate):
    """θ moves by terms whose mask is made once, before θ moves.

    Attributes:
        of: The terms.
        theta: θ's tensors under `rounding=compensated`, whose updates get θ plus the compensation term (Kahan): the
            mask is that of the probes, of θ. None where updates get θ.
    """

    of: Terms
    theta: Sequence[Tensor] | None

    def terms(self, i: int, p: Tensor) -> Terms:
        """Returns the term of tensor `i`."""
        theta = p if self.theta is None else self.theta[i]
        return [(1.0, Stored({i: combined(self.of, i, theta)}))]

    def kernel(self, at: UpdateTarget, pending: Terms) -> Callable[[], object] | None:
        """Returns a pass under Philox noise, if it reads θ itself."""
        if pending or self.theta is not None or fused(self.of, at.p) is None:
            return None
        return partial(add_, at.p, at.p, at.i, self.of, at.decay, at.rounding)


class SparseMeZO(MeZO):
    """θ ← θ − η/n Σ c_i mask z_i."""

    def __init__(self, params: ParameterSpace, config: SparseMeZOConfig, *, lr: float, seed: int):
        super().__init__(params, config, lr=lr, seed=seed)
        everything = config.scope == "all"
        self.state["threshold"] = [
            _quantile(whole(params.parameters[i]).detach(), config.share, free=not everything).to(
                p.device
            )
            if everything or matrix
            else p.new_full((), math.inf)
            for i, (p, matrix) in enumerate(zip(params.like, params.matrices, strict=True))
        ]

    def direction(self, i: int = 0) -> Masked:
        """Returns direction `i` of the current step."""
        return Masked(super().direction(i), self.state["threshold"])

    def apply(self, coefficients: Coefficients) -> None:
        """θ ← θ − η (1/n Σ c_i mask z_i + λ θ)."""
        terms = [(c / self.config.n, self.direction(i)) for i, c in enumerate(coefficients)]
        theta = None if self.params.residuals is None else self.params.settled()
        self.apply_update(lambda lr: MaskedUpdate([(-lr * c, z) for c, z in terms], theta))


def _quantile(p: Tensor, share: float, free: bool) -> Tensor:
    """Returns the largest of the smallest `share` of |p|, in p's dtype: at least one; ∞ for 0 where that is `free`."""
    if not p.numel():
        return p.new_full((), math.inf)
    values = p.abs().flatten()
    found = values.kthvalue(max(1, math.floor(share * p.numel()))).values
    return found.where(found > 0, math.inf) if free else found
