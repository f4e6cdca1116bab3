"""Base classes and types of all methods' settings. Imports no torch: checking a configuration has to be quick.

A method's settings stand in the file of its family, `config_<family>.py`: a dataclass with the method's defaults.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, get_args, get_type_hints


class Range(NamedTuple):
    """The valid values of a field.

    Attributes:
        holds: Returns whether a value is valid.
        right: What a message says of an invalid value: `must be …`.
        options: The valid names of a choice.
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
            return Annotated[str, one_of(*([options] if isinstance(options, str) else options))]


def one_of(*names: str) -> Range:
    """Returns the range of some names."""
    return Range(lambda x: x in names, f"must be one of {', '.join(names)}", names)


def at_least(least: float) -> Range:
    """Returns the range of the numbers from `least` on."""
    return Range(lambda x: x >= least, f"must be at least {least}")


def within(least: int, most: int) -> Range:
    """Returns the range of the numbers from `least` to `most`."""
    return Range(lambda x: least <= x <= most, f"must be {least} to {most}")


def or_null(of: Range) -> Range:
    """Returns a range with null added."""
    return Range(lambda x: x is None or of.holds(x), f"{of.right}, or null")


Positive = Annotated[float, Range(lambda x: x > 0, "must be greater than 0")]
AtLeast0 = Annotated[float, at_least(0)]
Steps = Annotated[int, at_least(0)]
Count = Annotated[int, at_least(1)]
AutoCount = Annotated[int | None, or_null(at_least(1))]
Decay = Annotated[float, Range(lambda x: 0 <= x < 1, "must be in [0, 1)")]
Share = Annotated[float, Range(lambda x: 0 < x <= 1, "must be in (0, 1]")]
AutoPositive = Annotated[float | None, Range(lambda x: x is None or x > 0, "must be > 0, or null")]

StepNorm = OneOf["none", "rms"]
AnchorPoint = OneOf["none", "start"]
AnchorNorm = OneOf["l2", "l1"]
Directions = OneOf["gaussian", "rademacher"]
StateDtype = OneOf["param", "float32"]

FOREVER = 2**31 - 1
"""Steps of an interval that does not end."""


class Rule(NamedTuple):
    """A condition on several settings.

    Attributes:
        key: The setting to change.
        holds: Returns whether settings meet it.
        right: What a message says: `must be …`; `{of.k}` is the setting k.
    """

    key: str
    holds: Callable[[Any], bool]
    right: str


def gaussian_alone(why: str) -> Rule:
    """Returns the rule of a method that takes Gaussian directions only."""
    return Rule("directions", lambda of: of.directions != "rademacher", f"must be gaussian: {why}")


@cache
def ranges_of(config: type) -> dict[str, Range]:
    """Returns the range of each field whose type has one."""
    types = get_type_hints(config, include_extras=True)
    pairs = ((key, of) for key, kind in types.items() for of in get_args(kind)[1:])
    return {key: of for key, of in pairs if isinstance(of, Range)}


class Settings:
    """Base class of dataclasses of settings, whose types have the ranges of single values."""

    rules: ClassVar[tuple[Rule, ...]] = ()
    """Conditions on this class's settings, in addition to those of its bases."""

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, what a message says) of each invalid value and of each rule that does not hold."""
        ranges = ranges_of(type(self)).items()  # type: ignore[arg-type]  # a class is hashable
        found = [(key, of.right) for key, of in ranges if not of.holds(getattr(self, key))]
        kinds = reversed(type(self).__mro__)
        rules = [rule for kind in kinds for rule in vars(kind).get("rules", ())]
        found += [(key, right.format(of=self)) for key, holds, right in rules if not holds(self)]
        return found


@dataclass(kw_only=True)
class MethodConfig(Settings):
    """Base class of the settings of all methods.

    Attributes:
        name: The method's name in `zo.optim.OPTIMIZERS`.
    """

    name: str = ""

    file: ClassVar[str] = ""
    """Where a method in a file of one's own is, `/home/me/my_method.py:MyMethod`; decides no numbers."""

    replays: ClassVar[bool] = True
    """False where losses are not enough to repeat a step: backpropagation, whose gradient is not kept."""

    keeps_best: ClassVar[bool] = False
    """Whether the best step's weights stay by default: steps cannot be replayed, and the own state is larger."""

    reads_weights: ClassVar[bool] = False
    """Whether a direction depends on θ itself, so that a probe has to know θ."""

    supports_sharding: ClassVar[bool] = False
    """Whether the method moves parts of sharded tensors as it moves whole ones."""

    state_tensors: ClassVar[int] = 0
    """How many tensors of θ's size, in `state_dtype`, are held beside it: kept between steps, or the gradient."""

    scale_invariant: ClassVar[bool] = False
    """Whether a multiple of the loss makes the same step, without `step_norm`."""

    legacy_defaults: ClassVar[Mapping[str, Any]] = {}
    """Values of settings that files of earlier versions lack, if not the defaults; in run ids, too."""

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
        """Whether all updates are of low rank, which `restore=factors` needs."""
        return False

    @property
    def accumulates_factors(self) -> bool:
        """Whether `restore=factors` adds updates up beside the weights, since the right factor is kept."""
        return self.low_rank

    @property
    def revision(self) -> int:
        """Version of the numbers that these settings give; part of the run's id unless it is 0."""
        return 0

    def restore_needs(self) -> dict[str, Any]:
        """Returns the requirements on a restore policy: arguments of `zo.weights.constraints.conflicts`."""
        return {
            "low_rank": self.low_rank,
            "accumulates_factors": self.accumulates_factors,
            "decay": getattr(self, "weight_decay", 0.0),
            "reads_weights": self.reads_weights,
        }

    def notes(self) -> list[str]:
        """Returns advice on unusual values, for the log."""
        return []


@dataclass(kw_only=True)
class ZerothOrderConfig(MethodConfig):
    """Base class of the settings of zeroth-order methods.

    Attributes:
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO (Dbouk et al.
            2026); or `none`.
        norm_beta: β in [0, 1) of that mean; ours, since the paper's could not be verified.
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
        """Whether scaling the factors of `restore=factors` down pulls θ towards the start."""
        return False

    def restore_needs(self) -> dict[str, Any]:
        """Returns the requirements on a restore policy."""
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
class BackpropConfig(MethodConfig):
    """Base class of the settings of first-order methods."""

    replays: ClassVar[bool] = False
    state_tensors: ClassVar[int] = 1  # the gradient

    @property
    def forwards_per_step(self) -> int:
        """Always 1; the backward pass is not counted."""
        return 1


@dataclass(kw_only=True)
class AdamConfig(BackpropConfig):
    """Settings of Adam by backpropagation; torch's defaults.

    Attributes:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        adam_eps: δ > 0, added to √v̂.
        weight_decay: λ ≥ 0.
    """

    keeps_best: ClassVar[bool] = True
    state_tensors: ClassVar[int] = 3  # gradient and moments
    name: str = "adam"
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    adam_eps: Positive = 1e-8
    weight_decay: AtLeast0 = 0.0


@dataclass(kw_only=True)
class SGDConfig(BackpropConfig):
    """Settings of SGD by backpropagation.

    Attributes:
        momentum: μ in [0, 1).
        weight_decay: λ ≥ 0.
    """

    name: str = "sgd"
    momentum: Decay = 0.0
    weight_decay: AtLeast0 = 0.0
