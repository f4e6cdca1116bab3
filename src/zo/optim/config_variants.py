"""Settings of the variants of MeZO: other steps along the directions that it measures. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from zo.optim.config import MeZOConfig, Problems, failed


@dataclass
class ZOSignConfig(MeZOConfig):
    """Settings of ZO-Sign: those of MeZO."""

    name: str = "zo_sign"
    eps: float = 1e-3

    normalises: ClassVar[bool] = True


@dataclass
class ZOMomentumConfig(MeZOConfig):
    """Settings of ZO-Momentum: those of MeZO, and of the momentum.

    Attributes:
        momentum: β in [0, 1); 0 is MeZO.
        state_dtype: Of m: `param`, the parameters' own, or `float32`.
    """

    name: str = "zo_momentum"
    eps: float = 1e-3
    momentum: float = 0.9
    state_dtype: str = "param"

    state_tensors: ClassVar[int] = 1


@dataclass
class ZOConservativeConfig(MeZOConfig):
    """Settings of ZO-Conservative: those of MeZO."""

    name: str = "zo_conservative"
    eps: float = 1e-3

    @property
    def forwards_per_step(self) -> int:
        """MeZO's, and one for each of three candidates."""
        return super().forwards_per_step + 3


@dataclass
class SparseMeZOConfig(MeZOConfig):
    """Settings of Sparse-MeZO: those of MeZO, and which weights move.

    Attributes:
        share: Of each masked tensor, in (0, 1]: the smallest weights, by absolute value, at the start.
        scope: What is masked: `matrices`, 2-D weights of neither embeddings nor norms, or `all` tensors.
    """

    name: str = "sparse_mezo"
    eps: float = 1e-3
    share: float = 0.25
    scope: str = "matrices"

    reads_weights: ClassVar[bool] = True
    shards: ClassVar[bool] = False
    unwritten: ClassVar[Mapping[str, Any]] = {"scope": "all"}


@dataclass
class ConMeZOConfig(MeZOConfig):
    """Settings of ConMeZO: those of MeZO, and of the cone.

    Attributes:
        angle: ϑ in [0, π/2], radians, between z and m: π/2 is MeZO.
        beta: β* in [0, 1), from step `hold + ramp` on.
        beta_start: β₀ in [0, 1), for the first `hold` steps.
        hold: t₀ ≥ 0.
        ramp: t₁ ≥ 1.
        state_dtype: Of m: `param`, the parameters' own, or `float32`.
    """

    name: str = "conmezo"
    eps: float = 1e-3
    angle: float = 1.35
    beta: float = 0.99
    beta_start: float = 0.1
    hold: int = 200
    ramp: int = 1800
    state_dtype: str = "float32"

    state_tensors: ClassVar[int] = 1
    shards: ClassVar[bool] = False

    def problems(self) -> Problems:
        """Returns (key, what would be right) of every value out of range."""
        return super().problems() + failed(
            [("n", self.n == 1, "must be 1: the cone has one direction")]
        )


@dataclass
class AdaMeZOConfig(MeZOConfig):
    """Settings of AdaMeZO: those of MeZO, and of its moments.

    Attributes:
        window: h ≥ 1, steps.
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        adam_eps: δ > 0.
        scale: s > 0, beside the learning rate.
    """

    name: str = "adamezo"
    eps: float = 1e-3
    window: int = 10
    beta1: float = 0.7
    beta2: float = 0.9
    adam_eps: float = 1e-5
    scale: float = 100.0

    def problems(self) -> Problems:
        """Returns (key, what would be right) of every value out of range."""
        return super().problems() + failed(
            [("n", self.n == 1, "must be 1: the window has one slope per step")]
        )


@dataclass
class FZOOConfig(MeZOConfig):
    """Settings of FZOO: those of MeZO with one-sided differences.

    Attributes:
        n: N ≥ 2, directions per step.
        std_floor: ≥ 0; a step whose losses' standard deviation is at most this multiple of |f₀| is left out.
    """

    name: str = "fzoo"
    eps: float = 1e-4
    two_sided: bool = False
    n: int = 8
    directions: str = "rademacher"
    std_floor: float = 1e-7

    normalises: ClassVar[bool] = True

    def problems(self) -> Problems:
        """Returns (key, what would be right) of every value out of range."""
        base = "must be false: f₀ is the base of all differences"
        return super().problems() + failed(
            [
                ("two_sided", not self.two_sided, base),
                ("n", self.n != 1, "must be at least 2, for a standard deviation"),
            ]
        )
