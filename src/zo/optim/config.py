"""Settings of the methods, one dataclass each. Imports no torch: checking a configuration has to be quick.

A field's default is the method's default. `problems` names every value out of range.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

Problems = list[tuple[str, str]]
"""(key, what would be right), one pair for each value out of range."""


Range = tuple[Callable[[Any], bool], str]
"""Whether a value is right, and what would be right."""


def one_of(*options: str) -> Range:
    """Returns the range of a setting that is one of some names."""
    return lambda x: x in options, f"must be one of {', '.join(options)}"


POSITIVE: Range = lambda x: x > 0, "must be greater than 0"
AT_LEAST_0: Range = lambda x: x >= 0, "must be at least 0"
AT_LEAST_1: Range = lambda x: x >= 1, "must be at least 1"
BELOW_1: Range = lambda x: 0 <= x < 1, "must be in [0, 1)"
UP_TO_1: Range = lambda x: 0 < x <= 1, "must be in (0, 1]"

FOREVER = 2**31 - 1
"""Steps of an interval that does not end."""

RANGES: dict[str, Range] = {
    **dict.fromkeys(("eps", "adam_eps", "scale", "c"), POSITIVE),
    **dict.fromkeys(("weight_decay", "anchor_decay", "hold", "vector_lr", "std_floor"), AT_LEAST_0),
    **dict.fromkeys(("n", "k", "rank", "interval", "ramp", "smooth_steps"), AT_LEAST_1),
    **dict.fromkeys(("beta1", "beta2", "beta", "beta_start", "norm_beta", "momentum"), BELOW_1),
    "hessian_smooth": BELOW_1,
    **dict.fromkeys(("share", "noise_ema"), UP_TO_1),
    **dict.fromkeys(
        ("prior_std", "noise_std"), (lambda x: x is None or x > 0, "must be > 0, or null")
    ),
    "noise_floor": (lambda x: 0 <= x <= 1, "must be in [0, 1]"),
    "angle": (lambda x: 0 <= x <= 1.5708, "must be in [0, π/2]"),
    "window": (lambda x: 1 <= x <= 1024, "must be in 1 to 1024"),
    "directions": one_of("gaussian", "rademacher"),
    "state_dtype": one_of("param", "float32"),
    "step_norm": one_of("none", "rms"),
    "anchor": one_of("none", "start"),
    "anchor_norm": one_of("l2", "l1"),
    "scope": one_of("matrices", "all"),
    "smooth_schedule": one_of("constant", "cosine"),
    "noise_update": one_of("every", "extra"),
    "variant": one_of("sgd", "momentum", "adam"),
    "msign": one_of("newton_schulz", "svd"),
}
"""Of settings that mean the same in every method that has them."""


@dataclass
class MethodConfig:
    """What the settings of every method have.

    Attributes:
        name: The method's name in `zo.optim.OPTIMIZERS`.
    """

    name: str = ""

    replays: ClassVar[bool] = True
    """False where losses are not enough to repeat a step: backpropagation, whose gradient is not kept."""

    reads_weights: ClassVar[bool] = False
    """Whether a direction depends on θ itself, so that a probe has to know θ."""

    shards: ClassVar[bool] = False
    """Whether the method moves parts of sharded tensors as it moves whole ones."""

    state_tensors: ClassVar[int] = 0
    """How many tensors of θ's size, in `state_dtype`, are kept between steps."""

    normalises: ClassVar[bool] = False
    """Whether a multiple of the loss makes the same step, without `step_norm`."""

    ranges: ClassVar[Mapping[str, Range]] = {}
    """Of settings that have another range in this method than in RANGES, or none there."""

    unwritten: ClassVar[Mapping[str, Any]] = {}
    """What run ids, and files that lack a setting, mean by it where that is not its default."""

    @property
    def forwards_per_step(self) -> int:
        """Forward passes of a step; 0 of a baseline that makes none."""
        return 0

    @property
    def losses_per_step(self) -> int:
        """Numbers that a replay of a step needs: its losses, and what else it measured."""
        return self.forwards_per_step

    @property
    def passes_per_step(self) -> int:
        """Forward passes of a step, in which a backward pass counts as two."""
        return self.forwards_per_step + (0 if self.replays else 2)

    @property
    def low_rank(self) -> bool:
        """Whether all moves are along directions of low rank: `restore=factors` needs it."""
        return False

    @property
    def adds_up(self) -> bool:
        """Whether `restore=factors` adds updates up beside the weights, since the right factor is kept."""
        return self.low_rank

    @property
    def numbers(self) -> int:
        """Part of the run's id unless it is 0; to be raised where these settings begin to give other numbers."""
        return 0

    def restore_needs(self) -> dict[str, Any]:
        """Returns what a restore policy has to allow: arguments of `zo.weights.constraints.conflicts`."""
        decay = getattr(self, "weight_decay", 0.0)
        needs = {"low_rank": self.low_rank, "adds_up": self.adds_up, "decay": decay}
        return {**needs, "reads_weights": self.reads_weights}

    def problems(self) -> Problems:
        """Returns (key, what would be right) of every value out of range."""
        ranges = {**RANGES, **self.ranges}
        known = [of.name for of in fields(self) if of.name in ranges]
        return failed((key, ranges[key][0](getattr(self, key)), ranges[key][1]) for key in known)

    def notes(self) -> list[str]:
        """Returns what a person should know of these values."""
        return []


def failed(checks: Iterable[tuple[str, bool, str]]) -> Problems:
    """Returns key and right value of every check, (key, whether it is right, what would be right), that failed."""
    return [(key, right) for key, ok, right in checks if not ok]


@dataclass
class ZerothOrderConfig(MethodConfig):
    """What the settings of every zeroth-order method have.

    Attributes:
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
    """

    step_norm: str = "none"
    norm_beta: float = 0.99
    anchor: str = "none"
    anchor_decay: float = 0.0
    anchor_norm: str = "l2"

    @property
    def anchored(self) -> bool:
        """Whether steps are pulled towards the start."""
        return self.anchor == "start"

    @property
    def anchors_factors(self) -> bool:
        """Whether a pull of the factors that `restore=factors` moves is a pull towards the start."""
        return False

    def restore_needs(self) -> dict[str, Any]:
        """Returns what a restore policy has to allow."""
        return {**super().restore_needs(), "anchor": self.anchored and not self.anchors_factors}

    def problems(self) -> Problems:
        """Returns (key, what would be right) of every value out of range."""
        none = "must be greater than 0 with anchor=start"
        idle = "must be start, or anchor_decay 0, which anchor=none does not read"
        return super().problems() + failed(
            [
                ("anchor_decay", not self.anchored or self.anchor_decay != 0, none),
                ("anchor", self.anchor != "none" or self.anchor_decay == 0, idle),
            ]
        )


@dataclass
class MeZOConfig(ZerothOrderConfig):
    """Settings of MeZO.

    Attributes:
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided differences; False measures (L(θ + ε z) − L(θ)) / ε.
        n: Directions per step, ≥ 1, whose estimates are averaged.
        weight_decay: λ ≥ 0.
        directions: What a direction's entries are: `gaussian`, standard normals, or `rademacher`, random signs.
    """

    name: str = "mezo"
    eps: float = 1e-4
    two_sided: bool = True
    n: int = 1
    weight_decay: float = 0.0
    directions: str = "gaussian"

    shards: ClassVar[bool] = True

    @property
    def forwards_per_step(self) -> int:
        """Two per direction, or one and one at θ."""
        return 2 * self.n if self.two_sided else 1 + self.n


@dataclass
class MeZOAdamConfig(MeZOConfig):
    """Settings of MeZO-Adam: those of MeZO, and of Adam.

    Attributes:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        adam_eps: δ > 0, added to √v̂.
        state_dtype: Of m, v and the arithmetic on them: `param`, as the released code, or `float32`.
    """

    name: str = "mezo_adam"
    beta1: float = 0.9
    beta2: float = 0.999
    adam_eps: float = 1e-8
    state_dtype: str = "param"

    state_tensors: ClassVar[int] = 2
    normalises: ClassVar[bool] = True


@dataclass
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
    eps: float = 1e-4
    hessian_smooth: float = 1e-8
    smooth_schedule: str = "constant"
    smooth_steps: int = 20_000
    state_dtype: str = "param"
    weight_decay: float = 0.0
    directions: str = "gaussian"

    state_tensors: ClassVar[int] = 1
    shards: ClassVar[bool] = True

    @property
    def forwards_per_step(self) -> int:
        """Always 3."""
        return 3

    def problems(self) -> Problems:
        """Returns (key, what would be right) of every value out of range."""
        why = "must be gaussian: H moves by z², which is 1 for every sign, so H would be one number"
        return super().problems() + failed([("directions", self.directions != "rademacher", why)])

    def notes(self) -> list[str]:
        """Returns what a person should know of these values."""
        if self.hessian_smooth > 1e-8:
            return []
        return [
            f"optimizer.hessian_smooth={self.hessian_smooth:g} hardly moves H from 1: the losses are MeZO's to the "
            "printed digits; a larger value uses the curvature"
        ]


@dataclass
class LOZOConfig(MeZOConfig):
    """Settings of LOZO: those of MeZO, and of its directions.

    Attributes:
        rank: r ≥ 1.
        interval: Steps, ≥ 1, for which V is kept.
        divide_by_rank: The paper's factor 1/r of the update of matrices.
        directions: `gaussian` alone.
    """

    name: str = "lozo"
    rank: int = 2
    interval: int = 50
    divide_by_rank: bool = False

    shards: ClassVar[bool] = False

    @property
    def low_rank(self) -> bool:
        """True."""
        return True

    @property
    def anchors_factors(self) -> bool:
        """Whether θ − θ₀ is A Vᵀ with one V, and the pull scales it."""
        return self.interval == FOREVER and self.anchor_norm == "l2"

    def problems(self) -> Problems:
        """Returns (key, what would be right) of every value out of range."""
        why = "must be gaussian: U and V are; they are small, and signs would save no time"
        return super().problems() + failed([("directions", self.directions != "rademacher", why)])


@dataclass
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
        weight_decay: λ ≥ 0.
        directions: What a direction's entries are: `gaussian`, standard normals, or `rademacher`, random signs.
    """

    name: str = "bszo"
    eps: float = 1e-4
    k: int = 2
    m: int | None = None
    reuse_probes: bool = True
    two_sided: bool = False
    prior_std: float | None = None
    noise_std: float | None = None
    adaptive_noise: bool = True
    noise_ema: float = 0.1
    noise_update: str = "every"
    noise_floor: float = 0.1
    adaptive_sampling: bool = True
    weight_decay: float = 0.0
    directions: str = "gaussian"

    shards: ClassVar[bool] = True

    @property
    def cached(self) -> bool:
        """Whether measurements beyond the k-th are looked up."""
        return self.reuse_probes and self.adaptive_sampling

    @property
    def forwards_per_step(self) -> int:
        """1 + measurements that are made; two-sided 2 per measurement."""
        measured = self.k if self.cached else self.k + 1 if self.m is None else self.m
        return 2 * measured if self.two_sided else 1 + measured

    def problems(self) -> Problems:
        """Returns (key, what would be right) of every value out of range."""
        right = f"must be at least k={self.k}, or null"
        return super().problems() + failed([("m", self.m is None or self.m >= self.k, right)])


@dataclass
class BSZOBConfig(BSZOConfig):
    """BSZO-B, the paper's baseline: extra measurements are made, not looked up."""

    name: str = "bszo_b"
    reuse_probes: bool = False
