"""Settings of MeZO, of its variants, and of HiZOO: slopes along random directions. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from zo.optim.config import (
    AtLeast0,
    Count,
    Decay,
    Directions,
    OneOf,
    Positive,
    Range,
    Rule,
    Share,
    StateDtype,
    Steps,
    ZerothOrderConfig,
    gaussian_alone,
)

Schedule = OneOf["constant", "cosine"]
Scope = OneOf["matrices", "all"]


@dataclass(kw_only=True)
class MeZOConfig(ZerothOrderConfig):
    """Settings of MeZO.

    Attributes:
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided differences; False measures (L(θ + ε z) − L(θ)) / ε.
        n: Directions per step, ≥ 1, whose estimates are averaged (n-SPSA); 1 in the papers of most variants.
        weight_decay: λ ≥ 0; 0 in the released code.
        directions: What a direction's entries are: `gaussian`, standard normals, as the released code; or `rademacher`,
            random signs, which cost a pass less (ours).
    """

    name: str = "mezo"
    eps: Positive = 1e-4
    two_sided: bool = True
    n: Count = 1
    weight_decay: AtLeast0 = 0.0
    directions: Directions = "gaussian"

    supports_sharding: ClassVar[bool] = True

    @property
    def forwards_per_step(self) -> int:
        """Two per direction, or one and one at θ."""
        return 2 * self.n if self.two_sided else 1 + self.n


@dataclass(kw_only=True)
class MeZOAdamConfig(MeZOConfig):
    """Settings of MeZO-Adam: those of MeZO, and of Adam.

    Attributes:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        adam_eps: δ > 0, added to √v̂.
        state_dtype: Of m, v and the arithmetic on them: `param`, as the released code, or `float32`.
    """

    name: str = "mezo_adam"
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    adam_eps: Positive = 1e-8
    state_dtype: StateDtype = "param"

    state_tensors: ClassVar[int] = 2
    scale_invariant: ClassVar[bool] = True


@dataclass(kw_only=True)
class HiZOOConfig(ZerothOrderConfig):
    """Settings of HiZOO.

    Attributes:
        eps: ε > 0, the perturbation scale (paper: 1e-4; the HiZOO release: 1e-3).
        hessian_smooth: s in [0, 1), the weight of the newest curvature in H; 0 is MeZO with one more forward pass.
        smooth_schedule: s is `constant`, or falls to 0 as half a `cosine`.
        smooth_steps: Steps, ≥ 1, over which it falls; `constant` does not read it.
        state_dtype: Of H and the arithmetic on it: `param`, as the released code, or `float32`.
        weight_decay: λ ≥ 0.
        directions: `gaussian` alone.
    """

    name: str = "hizoo"
    eps: Positive = 1e-4
    hessian_smooth: Decay = 1e-8
    smooth_schedule: Schedule = "constant"
    smooth_steps: Count = 20_000
    state_dtype: StateDtype = "param"
    weight_decay: AtLeast0 = 0.0
    directions: Directions = "gaussian"

    state_tensors: ClassVar[int] = 1
    supports_sharding: ClassVar[bool] = True

    @property
    def forwards_per_step(self) -> int:
        """Always 3."""
        return 3

    rules: ClassVar[tuple[Rule, ...]] = (
        gaussian_alone("H moves by z², which is 1 for every sign, so H would be one number"),
    )

    def notes(self) -> list[str]:
        """Returns advice on unusual values, for the log."""
        if self.hessian_smooth > 1e-8:
            return []
        return [
            f"optimizer.hessian_smooth={self.hessian_smooth:g} hardly moves H from 1: the losses are MeZO's to the "
            "printed digits; a larger value uses the curvature"
        ]


@dataclass(kw_only=True)
class ZOSignConfig(MeZOConfig):
    """Settings of ZO-Sign: those of MeZO; its ε is that of MeZO's release, as in ZO-Bench."""

    name: str = "zo_sign"
    eps: Positive = 1e-3

    scale_invariant: ClassVar[bool] = True


@dataclass(kw_only=True)
class ZOMomentumConfig(MeZOConfig):
    """Settings of ZO-Momentum: those of MeZO, and of the momentum.

    Attributes:
        momentum: β in [0, 1), 0.9 in all of ZO-Bench's sweeps; 0 is MeZO.
        state_dtype: Of m: `param`, the parameters' own, or `float32`.
    """

    name: str = "zo_momentum"
    eps: Positive = 1e-3
    momentum: Decay = 0.9
    state_dtype: StateDtype = "param"

    state_tensors: ClassVar[int] = 1


@dataclass(kw_only=True)
class ZOConservativeConfig(MeZOConfig):
    """Settings of ZO-Conservative: those of MeZO; its ε is that of MeZO's release, as in ZO-Bench."""

    name: str = "zo_conservative"
    eps: Positive = 1e-3

    @property
    def forwards_per_step(self) -> int:
        """MeZO's, and one for each of three candidates."""
        return super().forwards_per_step + 3


@dataclass(kw_only=True)
class SparseMeZOConfig(MeZOConfig):
    """Settings of Sparse-MeZO: those of MeZO, and which weights move.

    Attributes:
        share: Of each masked tensor, in (0, 1]: the smallest weights, by absolute value, at the start.
        scope: What is masked: `matrices`, 2-D weights of neither embeddings nor norms, or `all` tensors.
    """

    name: str = "sparse_mezo"
    eps: Positive = 1e-3
    share: Share = 0.25
    scope: Scope = "matrices"

    reads_weights: ClassVar[bool] = True
    supports_sharding: ClassVar[bool] = False
    legacy_defaults: ClassVar[Mapping[str, Any]] = {"scope": "all"}


@dataclass(kw_only=True)
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
    eps: Positive = 1e-3
    angle: Annotated[float, Range(lambda x: 0 <= x <= 1.5708, "must be in [0, π/2]")] = 1.35
    beta: Decay = 0.99
    beta_start: Decay = 0.1
    hold: Steps = 200
    ramp: Count = 1800
    state_dtype: StateDtype = "float32"

    state_tensors: ClassVar[int] = 1
    supports_sharding: ClassVar[bool] = False

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("n", lambda of: of.n == 1, "must be 1: the cone has one direction"),
    )


@dataclass(kw_only=True)
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
    eps: Positive = 1e-3
    window: Annotated[int, Range(lambda x: 1 <= x <= 1024, "must be in 1 to 1024")] = 10
    beta1: Decay = 0.7
    beta2: Decay = 0.9
    adam_eps: Positive = 1e-5
    scale: Positive = 100.0

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("n", lambda of: of.n == 1, "must be 1: the window has one slope per step"),
    )


@dataclass(kw_only=True)
class FZOOConfig(MeZOConfig):
    """Settings of FZOO: those of MeZO with one-sided differences.

    Attributes:
        n: N ≥ 2, directions per step.
        std_floor: ≥ 0; a step whose losses' standard deviation is at most this multiple of |f₀| is left out.
    """

    name: str = "fzoo"
    eps: Positive = 1e-4
    two_sided: bool = False
    n: Count = 8
    directions: Directions = "rademacher"
    std_floor: AtLeast0 = 1e-7

    scale_invariant: ClassVar[bool] = True

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "two_sided",
            lambda of: not of.two_sided,
            "must be false: f₀ is the base of all differences",
        ),
        Rule("n", lambda of: of.n != 1, "must be at least 2, for a standard deviation"),
    )
