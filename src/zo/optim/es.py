"""ES: an evolution strategy, whose step weighs the directions of a population by the members' shaped rewards.

    for i = 1 … N:  member θ + s_i ε z_i, s_i = ±1;  R_i = −L(θ + s_i ε z_i)
        `mirrored`: members 2j − 1 and 2j share a direction, s = +1 and −1; else each has its own, s = +1
    w_i = (R_i − mean R) / D    `shaping=zscore`  D = std R + 10⁻⁸,  or with `baseline=prompt` √(var R_ip + 10⁻⁵)
          rank(R_i)/(N − 1) − ½ `shaping=ranks`   equal rewards share the mean of their ranks
          (R_i − mean R) / ε    `shaping=none`
    θ ← θ + η (1/N Σ_i w_i s_i z_i − λ θ)        λ: `weight_decay`, not on biases and norms

`directions=low_rank`: z = A Bᵀ / √r for every matrix, A and B ~ N(0, I), m × r and n × r, new for each direction;
z ~ N(0, I) for biases and norms. R_ip is the reward of member i's text p, and var is over all of both.

Cost: N forward passes per step; no state. Passes over the weights: N + 2 (`restore=subtract`), N + 1 (`merged`), 1 with
`factors`, which measures directions of low rank together. Equal rewards make no step. With `shaping=none` and pairs it
is MeZO with `n` = N/2. With z-scores and ranks a step has the same length whatever the rewards are, so that it does not
shrink near an optimum.

Source: Salimans et al. 2017, "Evolution Strategies as a Scalable Alternative to Reinforcement Learning" (pairs, ranks);
Qiu et al. 2025, "Evolution Strategies at Scale: LLM Fine-Tuning Beyond Reinforcement Learning" (z-scores); Sarkar et
al. 2025, "Evolution Strategies at the Hyperscale" (EGGROLL: low rank).

Deviations: every tensor has noise of its own, and θ is restored to the bit under exact policies. All members see the
same prompts, so that a baseline for each prompt would cancel: `baseline=prompt` changes the divisor alone. More, with
the releases' units of η: docs/reference/deviations.md, docs/evolution-strategies.md.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from zo.noise import PERTURBATION, SUBSPACE, NoiseKey
from zo.optim.base import Estimate, LossFn
from zo.optim.config_evolution import ESConfig
from zo.optim.mezo import MeZO
from zo.weights.directions import Direction, Terms
from zo.weights.space import ParameterSpace
from zo.weights.subspaces import OuterProduct

STD_EPS = 1e-8
"""Added to the standard deviation of the members' rewards, as in es-at-scale."""

VARIANCE_EPS = 1e-5
"""Added to the variance of all texts' rewards, as in EGGROLL."""


class ES(MeZO):
    """θ ← θ + η/N Σ w_i s_i z_i."""

    config: ESConfig  # type: ignore[assignment]

    def __init__(self, params: ParameterSpace, config: ESConfig, *, lr: float, seed: int):
        super().__init__(params, config, lr=lr, seed=seed)  # type: ignore[arg-type]
        if config.low_rank:
            _check_rank(config.rank, params)

    @property
    def signs(self) -> tuple[float, ...]:
        """Sides on which each direction is measured."""
        return (1.0, -1.0) if self.config.mirrored else (1.0,)

    def direction_at(self, step: int, i: int = 0) -> Direction:
        """Returns direction `i` of a step; of low rank with factors of its own."""
        if not self.config.low_rank:
            return super().direction_at(step, i)
        return OuterProduct(
            u=NoiseKey(self.seed, PERTURBATION, step, i),
            v=NoiseKey(self.seed, SUBSPACE, step, i),
            rank=self.config.rank,
            scale=self.config.rank**-0.5,
            engine=self.params.engine,
        )

    def estimate(self, loss_fn: LossFn) -> Estimate:
        """Measures all members, and weighs the directions by their shaped rewards."""
        directions = map(self.direction, range(self.config.n // len(self.signs)))
        eps, points = self.config.eps, list[Terms]()
        points += ([(sign * eps, z)] for z in directions for sign in self.signs)
        losses = self.params.measure(loss_fn, [points])
        mean = sum(losses) / len(losses)
        apart = [loss - mean for loss in losses]
        spread = math.sqrt(sum(x * x for x in apart) / len(losses))
        self._finite("standard deviation of the losses", spread)
        if self.config.baseline == "prompt":
            square = loss_fn.mean_square()
            variance = max(square - mean * mean, 0.0)
            divisor = math.sqrt(variance + VARIANCE_EPS)
        else:
            divisor = spread + STD_EPS
        if min(losses) == max(losses):
            weights = [0.0] * len(losses)
        elif self.config.shaping == "ranks":
            weights = centred_ranks(losses)
        elif self.config.shaping == "none":
            weights = [x / self.config.eps for x in apart]
        else:
            weights = [x / divisor for x in apart]
        signed = [sign * w for sign, w in zip(self.signs * len(losses), weights, strict=False)]
        found = [
            sum(signed[i : i + len(self.signs)]) / len(self.signs)
            for i in range(0, len(signed), len(self.signs))
        ]
        scalars = {"best": min(losses), "spread": spread, "slope": sum(found) / len(found)}
        return Estimate(mean, tuple(found), scalars)


def centred_ranks(losses: Sequence[float]) -> list[float]:
    """Returns rank/(N − 1) − ½ of each loss, −½ for the smallest; equal ones share the mean of their ranks."""
    order = sorted(losses)
    shared = {x: (bisect_left(order, x) + bisect_right(order, x) - 1) / 2 for x in order}
    return [shared[x] / (len(losses) - 1) - 0.5 for x in losses]


def _check_rank(rank: int, params: ParameterSpace) -> None:
    """Raises ValueError if a weight matrix has a side below the rank; one with a side of 1 is a vector of any rank."""
    for name, p, matrix in zip(params.names, params.like, params.matrices, strict=True):
        if matrix and 1 < min(p.shape) < rank:
            raise ValueError(
                f"rank={rank}: must be at most {min(p.shape)}, the shorter side of {name}"
                f" ({p.shape[0]} × {p.shape[1]}); directions=gaussian has every rank"
            )
