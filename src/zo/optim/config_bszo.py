"""Settings of BSZO and BSZO-B. Imports no torch."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from zo.optim.config import (
    AtLeast0,
    AutoPositive,
    Count,
    Directions,
    OneOf,
    Positive,
    Range,
    Rule,
    Share,
    ZerothOrderConfig,
)

NoiseUpdate = OneOf["every", "extra"]


@dataclass(kw_only=True)
class BSZOConfig(ZerothOrderConfig):
    """Settings of BSZO and BSZO-B, which differ in `reuse_probes` alone.

    Attributes:
        eps: ε > 0, the perturbation scale.
        k: Subspace dimension, ≥ 1.
        m: Measurements per step, ≥ k; None means k + 1.
        reuse_probes: True: a measurement beyond the k-th takes the cached slope of the widest axis (BSZO). False: it
            is a forward pass along the top eigenvector of Σ (BSZO-B).
        two_sided: Two-sided differences, two forward passes per measurement.
        prior_std: σ_p > 0; None means sqrt(n / 1e6) for n trainable values.
        noise_std: σ_e at the start, > 0; None means sqrt(n / 1e6).
        adaptive_noise: False keeps σ_e at its start value.
        noise_ema: α in (0, 1], the weight of the newest squared residual in σ_e².
        noise_update: σ_e adapts at `every` observation, or only before each `extra` one beyond the k-th, from the
            pair observed last, which is Algorithm 1 to the letter.
        noise_floor: σ_e never falls below this multiple of its start value, in [0, 1].
        adaptive_sampling: False: measurements beyond the k-th go round the axes in turn, each measured afresh.
        weight_decay: λ ≥ 0; 0 in the released code.
        directions: What a direction's entries are: `gaussian`, standard normals, as the released code; or `rademacher`,
            random signs, which cost a pass less (ours).
    """

    name: str = "bszo"
    eps: Positive = 1e-4
    k: Count = 2
    m: int | None = None
    reuse_probes: bool = True
    two_sided: bool = False
    prior_std: AutoPositive = None
    noise_std: AutoPositive = None
    adaptive_noise: bool = True
    noise_ema: Share = 0.1
    noise_update: NoiseUpdate = "every"
    noise_floor: Annotated[float, Range(lambda x: 0 <= x <= 1, "must be in [0, 1]")] = 0.1
    adaptive_sampling: bool = True
    weight_decay: AtLeast0 = 0.0
    directions: Directions = "gaussian"

    supports_sharding: ClassVar[bool] = True

    @property
    def cached(self) -> bool:
        """Whether measurements beyond the k-th are looked up."""
        return self.reuse_probes and self.adaptive_sampling

    @property
    def forwards_per_step(self) -> int:
        """1 + measurements that are made; two-sided 2 per measurement."""
        measured = self.k if self.cached else self.k + 1 if self.m is None else self.m
        return 2 * measured if self.two_sided else 1 + measured

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("m", lambda of: of.m is None or of.m >= of.k, "must be at least k={of.k}, or null"),
    )


@dataclass(kw_only=True)
class BSZOBConfig(BSZOConfig):
    """BSZO-B, the paper's baseline: extra measurements are made, not looked up."""

    name: str = "bszo_b"
    reuse_probes: bool = False
