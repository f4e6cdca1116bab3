"""LOZO: MeZO along directions of low rank, whose row space is kept for a while.

    every `interval` steps:  V ~ N(0, I), columns × r, for every parameter of rows × columns
    U ~ N(0, I), rows × r;   Z = U Vᵀ   (biases and norms, which have no columns: Z ~ N(0, I))
    c = (L(θ + ε Z) − L(θ − ε Z)) / 2ε
    θ ← θ − η (c Z + λ θ)               with `divide_by_rank`: c Z / r where Z = U Vᵀ

Cost: 2 forward passes per step; no state, since V is drawn again from its key. Passes over the weights: 4
(`restore=subtract`); r (rows + columns) normals for a matrix instead of rows · columns. Under `restore=factors` both
losses are one pass of a batch of twice the rows, the updates add up in a factor A of rows × r, float32, which is the
state then, and there is one pass over the weights per `interval` steps: θ = W + A Vᵀ, see `zo.weights.restore.factors`.

Source: Chen et al. 2025, "Enhancing Zeroth-Order Fine-Tuning for Language Models with Low-Rank Structures"; its
Algorithm 1 has the factor 1/r, its released code and that of the BSZO paper have not.

Deviations: V has a noise stream of its own, so that the step is along the direction that was measured; in the released
code both share a generator, and on every step that redraws V the update is along another U, a random walk one step in
`interval`. A parameter with more than two dimensions is rows × the product of the rest. Entries of U Vᵀ have variance
r: ε and η grow with the rank, as in the released code. `n` > 1 is ours: n directions, each with its own U and V.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from zo.noise import PERTURBATION, SUBSPACE, NoiseKey
from zo.optim.base import Coefficients
from zo.optim.config_low_rank import LOZOConfig
from zo.optim.mezo import MeZO
from zo.weights.directions import LowRank
from zo.weights.space import ParameterSpace
from zo.weights.subspaces import drawn_factors
from zo.weights.updates import LinearUpdate

_Kind = TypeVar("_Kind", bound=LowRank)


class LOZO(MeZO):
    """θ ← θ − η c U Vᵀ."""

    config: LOZOConfig
    unsaved = ("factors",)

    def __init__(self, params: ParameterSpace, config: LOZOConfig, *, lr: float, seed: int):
        super().__init__(params, config, lr=lr, seed=seed)
        self.factors = drawn_factors(params)
        self.renew_subspace()
        self._use_subspace()

    @property
    def update_scale(self) -> float:
        """Factor of U Vᵀ in an update."""
        return 1.0 / self.config.rank if self.config.divide_by_rank else 1.0

    def direction_at(self, step: int, i: int = 0) -> LowRank:
        """Returns direction `i` of a step: U new, V as old as the interval says."""
        return self.drawn(LowRank, step, i, self.kept_key(step, i))

    def drawn(self, kind: type[_Kind], step: int, i: int, v: NoiseKey, **more: Any) -> _Kind:
        """Returns direction `i` of a step, of a kind whose key `u` is new and whose `v` is given."""
        return kind(
            u=NoiseKey(self.seed, PERTURBATION, step, i),
            v=v,
            rank=self.config.rank,
            engine=self.params.engine,
            factors=self.factors and self.factors.begin(step),
            **more,
        )

    def kept_key(self, step: int, stream: int) -> NoiseKey:
        """Returns the key of what is kept for the interval of a step."""
        return NoiseKey(self.seed, SUBSPACE, step // self.config.interval, stream)

    def advance(self, coefficients: Coefficients) -> None:
        """Applies the update and goes on to the next step; where V is redrawn, the factors are merged into θ."""
        super().advance(coefficients)
        if self.step_index % self.config.interval == 0:
            self.params.policy.merge_factors()
            self.renew_subspace()
            self._use_subspace()

    def renew_subspace(self) -> None:
        """Makes what is kept for an interval and not drawn again at each use: nothing."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`."""
        super().load_state_dict(state)
        self._use_subspace()

    def _use_subspace(self) -> None:
        """Draws the current step's V under `restore=factors`."""
        if self.params.policy.constraints.low_rank:
            directions = [self.direction_at(self.step_index, i) for i in range(self.config.n)]
            self.state |= self.params.policy.use_subspace(directions)

    def apply(self, coefficients: Coefficients) -> None:
        """θ ← θ − η (1/n Σ c_i U_i V_iᵀ + λ θ), along the measured directions."""
        scale, n = self.update_scale, self.config.n
        z = [replace(self.direction_at(self.step_index, i), scale=scale) for i in range(n)]
        pairs = list(zip(coefficients, z, strict=True))
        self.apply_update(lambda lr: LinearUpdate([(-lr * c / n, z_i) for c, z_i in pairs]))
