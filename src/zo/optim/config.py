"""Settings of the methods, one dataclass each. Imports no torch: checking a configuration has to be quick.

A field's default is the method's default. `problems` names every value out of range.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, get_args, get_type_hints


class Range(NamedTuple):
    """What a field's value may be.

    Attributes:
        holds: Whether a value is right.
        right: What would be right.
        options: The names that it is one of, if it is.
    """

    holds: Callable[[Any], bool]
    right: str
    options: tuple[str, ...] = ()


if TYPE_CHECKING:
    from typing import Literal as OneOf
else:

    class OneOf:
        """Type of a setting that is one of some names; a text for Hydra, which knows no `Literal`."""

        def __class_getitem__(cls, options: str | tuple[str, ...]) -> Any:
            names = (options,) if isinstance(options, str) else options
            right = f"must be one of {', '.join(names)}"
            return Annotated[str, Range(lambda x: x in names, right, names)]


_POSITIVE = Range(lambda x: x > 0, "must be greater than 0")
_AT_LEAST_0 = Range(lambda x: x >= 0, "must be at least 0")

Positive = Annotated[float, _POSITIVE]
AtLeast0 = Annotated[float, _AT_LEAST_0]
Steps = Annotated[int, _AT_LEAST_0]
Count = Annotated[int, Range(lambda x: x >= 1, "must be at least 1")]
Decay = Annotated[float, Range(lambda x: 0 <= x < 1, "must be in [0, 1)")]
Share = Annotated[float, Range(lambda x: 0 < x <= 1, "must be in (0, 1]")]
AutoPositive = Annotated[float | None, Range(lambda x: x is None or x > 0, "must be > 0, or null")]

StepNorm = OneOf["none", "rms"]
AnchorPoint = OneOf["none", "start"]
AnchorNorm = OneOf["l2", "l1"]
Directions = OneOf["gaussian", "rademacher"]
StateDtype = OneOf["param", "float32"]
Schedule = OneOf["constant", "cosine"]
NoiseUpdate = OneOf["every", "extra"]

FOREVER = 2**31 - 1
"""Steps of an interval that does not end."""


class Rule(NamedTuple):
    """What settings have to be beside one another.

    Attributes:
        key: The setting to change.
        holds: Whether the settings are right.
        right: What would be right; `{of.k}` stands for the setting k.
    """

    key: str
    holds: Callable[[Any], bool]
    right: str


def gaussian_alone(why: str) -> Rule:
    """Returns the rule of a method whose directions are normals alone."""
    return Rule("directions", lambda of: of.directions != "rademacher", f"must be gaussian: {why}")


@cache
def ranges_of(config: type) -> dict[str, Range]:
    """Returns the range of each field whose type has one."""
    types = get_type_hints(config, include_extras=True)
    pairs = ((key, of) for key, kind in types.items() for of in get_args(kind)[1:])
    return {key: of for key, of in pairs if isinstance(of, Range)}


@dataclass(kw_only=True)
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

    rules: ClassVar[tuple[Rule, ...]] = ()
    """Of this class's settings beside one another; those of its bases hold, too."""

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

    def problems(self) -> list[tuple[str, str]]:
        """Returns the key of every value that is out of range or does not fit another, and what would be right."""
        ranges = ranges_of(type(self)).items()  # type: ignore[arg-type]  # a class is hashable
        found = [(key, of.right) for key, of in ranges if not of.holds(getattr(self, key))]
        rules = [
            rule for kind in reversed(type(self).__mro__) for rule in vars(kind).get("rules", ())
        ]
        return found + [
            (key, right.format(of=self)) for key, holds, right in rules if not holds(self)
        ]

    def notes(self) -> list[str]:
        """Returns what a person should know of these values."""
        return []


@dataclass(kw_only=True)
class ZerothOrderConfig(MethodConfig):
    """What the settings of every zeroth-order method have.

    Attributes:
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
    """

    step_norm: StepNorm = "none"
    norm_beta: Decay = 0.99
    anchor: AnchorPoint = "none"
    anchor_decay: AtLeast0 = 0.0
    anchor_norm: AnchorNorm = "l2"

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

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "anchor_decay",
            lambda of: not of.anchored or of.anchor_decay != 0,
            "must be greater than 0 with anchor=start",
        ),
        Rule(
            "anchor",
            lambda of: of.anchored or of.anchor_decay == 0,
            "must be start, or anchor_decay 0, which anchor=none does not read",
        ),
    )


@dataclass(kw_only=True)
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
    eps: Positive = 1e-4
    two_sided: bool = True
    n: Count = 1
    weight_decay: AtLeast0 = 0.0
    directions: Directions = "gaussian"

    shards: ClassVar[bool] = True

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
    normalises: ClassVar[bool] = True


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
    shards: ClassVar[bool] = True

    @property
    def forwards_per_step(self) -> int:
        """Always 3."""
        return 3

    rules: ClassVar[tuple[Rule, ...]] = (
        gaussian_alone("H moves by z², which is 1 for every sign, so H would be one number"),
    )

    def notes(self) -> list[str]:
        """Returns what a person should know of these values."""
        if self.hessian_smooth > 1e-8:
            return []
        return [
            f"optimizer.hessian_smooth={self.hessian_smooth:g} hardly moves H from 1: the losses are MeZO's to the "
            "printed digits; a larger value uses the curvature"
        ]


@dataclass(kw_only=True)
class LOZOConfig(MeZOConfig):
    """Settings of LOZO: those of MeZO, and of its directions.

    Attributes:
        rank: r ≥ 1.
        interval: Steps, ≥ 1, for which V is kept.
        divide_by_rank: The paper's factor 1/r of the update of matrices.
        directions: `gaussian` alone.
    """

    name: str = "lozo"
    rank: Count = 2
    interval: Count = 50
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

    rules: ClassVar[tuple[Rule, ...]] = (
        gaussian_alone("U and V are; they are small, and signs would save no time"),
    )


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
        weight_decay: λ ≥ 0.
        directions: What a direction's entries are: `gaussian`, standard normals, or `rademacher`, random signs.
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

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("m", lambda of: of.m is None or of.m >= of.k, "must be at least k={of.k}, or null"),
    )


@dataclass(kw_only=True)
class BSZOBConfig(BSZOConfig):
    """BSZO-B, the paper's baseline: extra measurements are made, not looked up."""

    name: str = "bszo_b"
    reuse_probes: bool = False
