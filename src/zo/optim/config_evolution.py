"""Settings of evolution strategies, and of two released ones. Imports no torch."""

from dataclasses import dataclass
from typing import ClassVar

from zo.optim.config import AtLeast0, Count, OneOf, Positive, Rule, ZerothOrderConfig

Shaping = OneOf["zscore", "ranks", "none"]
Baseline = OneOf["population", "prompt"]
AllDirections = OneOf["gaussian", "rademacher", "low_rank"]


@dataclass(kw_only=True)
class ESConfig(ZerothOrderConfig):
    """Settings of ES.

    Attributes:
        eps: ε > 0, the perturbation scale, which papers on ES call σ.
        n: N ≥ 2, members of the population: forward passes per step.
        mirrored: Whether members come in pairs θ + ε z and θ − ε z. False gives each member a direction of its own.
        shaping: What the step weighs directions by: `zscore`, rewards over their standard deviation; `ranks`, their
            centred ranks, from −½ to ½, where equal rewards share a rank; or `none`, rewards over ε, a slope.
        baseline: Of the z-scores, the standard deviation of the members' mean rewards (`population`), or of the rewards
            of all members' texts (`prompt`).
        directions: What a direction's entries are: `gaussian`, standard normals; `rademacher`, random signs; or
            `low_rank`, those of A Bᵀ / √r in matrices, with A and B new for each direction, and standard normals in
            biases and norms.
        rank: r ≥ 1 of `low_rank`.
        weight_decay: λ ≥ 0.
    """

    name: str = "es"
    eps: Positive = 1e-3
    n: Count = 30
    mirrored: bool = True
    shaping: Shaping = "zscore"
    baseline: Baseline = "population"
    directions: AllDirections = "gaussian"
    rank: Count = 1
    weight_decay: AtLeast0 = 0.0

    supports_sharding: ClassVar[bool] = True
    scale_invariant: ClassVar[bool] = True

    @property
    def forwards_per_step(self) -> int:
        """One per member."""
        return self.n

    @property
    def losses_per_step(self) -> int:
        """One per member, and with `baseline=prompt` the mean square of all texts' rewards."""
        return self.n + (self.baseline == "prompt")

    @property
    def low_rank(self) -> bool:
        """Whether the directions are."""
        return self.directions == "low_rank"

    @property
    def accumulates_factors(self) -> bool:
        """False: every direction has a right factor of its own."""
        return False

    @property
    def anchors_factors(self) -> bool:
        """True: every update writes the weights."""
        return True

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "n", lambda of: of.n != 1, "must be at least 2: a member is weighed against the others"
        ),
        Rule(
            "n",
            lambda of: not of.mirrored or of.n % 2 == 0 or of.n == 1,
            "must be even with mirrored=true: each direction is measured on both of its sides",
        ),
        Rule(
            "baseline",
            lambda of: of.baseline != "prompt" or of.shaping == "zscore",
            "must be population with shaping={of.shaping}: only z-scores differ by it",
        ),
    )


@dataclass(kw_only=True)
class ESAtScaleConfig(ESConfig):
    """ES as es-at-scale makes it: normals on all weights, each member a direction of its own, z-scores.

    The defaults are the released settings of VsonicV/es-at-scale 574a9d1, whose α is lr: 5e-4, eps/2.
    """

    name: str = "es_at_scale"
    mirrored: bool = False


@dataclass(kw_only=True)
class EGGROLLConfig(ESConfig):
    """ES as EGGROLL makes it: directions of rank 1, on both of their sides, z-scores over all texts' rewards.

    The defaults are the released settings of ESHyperscale/HyperscaleES b77f7d6; its lr_scale=1 is lr=0.032.
    """

    name: str = "eggroll"
    n: Count = 1024
    baseline: Baseline = "prompt"
    directions: AllDirections = "low_rank"

    supports_sharding: ClassVar[bool] = False
