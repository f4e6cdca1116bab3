"""Settings of adapters, one dataclass each. Imports neither torch nor peft."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from zo.lm.config import problems_of_rates
from zo.optim.config import AutoPositive, Count, Range, Rule, Settings, one_of


@dataclass
class AdapterConfig(Settings):
    """No adapter; base class of the settings of all adapters.

    All parameters of the model are trained, except for quantised ones.

    Attributes:
        name: The adapter's name in `ADAPTERS`.
        eps: Replaces the default ε of a method; None keeps it.
        lr_grid: Optimizer name -> learning rates, instead of the model's.
    """

    name: str = "none"
    eps: AutoPositive = None
    lr_grid: dict[str, Any] = field(default_factory=dict)

    kinds: ClassVar[tuple[str, ...]] = ("decoder", "masked")
    """Kinds of models that the adapter fits."""

    legacy_defaults: ClassVar[Mapping[str, Any]] = {}
    """What a recorded run without a setting means, where that is not the default."""

    own_rates: ClassVar[bool] = False
    """Whether learning rates come from `lr_grid` here; False: from the model's."""

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, valid range) of each invalid value."""
        return super().problems() + problems_of_rates(self.lr_grid)

    def trained_dtype(self, weights: str) -> str:
        """Returns the dtype of what is trained, of a model whose weights have the given one."""
        return weights


COMMON = ("name", "eps", "lr_grid", "path", "dtype")  # Settings that an adapter's files do not fix


@dataclass
class PeftAdapter(AdapterConfig):
    """Base class of the settings of peft's adapters.

    Attributes:
        path: Directory with an exported adapter to continue from; None: a new adapter.
        dtype: Of the adapter: `float32`, as peft's own default, or the `model`'s, as recorded runs without this
            setting. Part of a run's identity where the model's is another.
    """

    path: str | None = None
    dtype: Annotated[str, one_of("float32", "model")] = "float32"

    own_rates: ClassVar[bool] = True
    legacy_defaults: ClassVar[Mapping[str, Any]] = {"dtype": "model"}

    def trained_dtype(self, weights: str) -> str:
        """As `AdapterConfig.trained_dtype`."""
        return self.dtype if self.dtype == "float32" else weights

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, valid range) of each invalid value."""
        found = super().problems()
        if self.path is not None and not Path(self.path, "adapter_config.json").is_file():
            found.append(("path", "must be a directory with adapter_config.json, or null"))
        elif self.path is not None:
            given = [
                key for key, value in vars(type(self)()).items() if getattr(self, key) != value
            ]
            right = "must be left out with adapter.path, whose files decide it"
            found += [(key, right) for key in given if key not in COMMON]
        return found


LAYERS = re.compile(r"(first|last):([1-9]\d*)")
RIGHT_LAYERS = "must be last:4, first:4, a list of numbers from 0 as [10,11], or null"


def _are_layers(layers: Any) -> bool:
    if isinstance(layers, list):
        return bool(layers) and all(type(i) is int and i >= 0 for i in layers)
    return layers is None or (isinstance(layers, str) and LAYERS.fullmatch(layers) is not None)


Layers = Annotated[Any, Range(_are_layers, RIGHT_LAYERS)]


def chosen_layers(layers: Any, count: int) -> list[int]:
    """Returns the numbers of the chosen layers of a model. Raises ValueError if it has fewer than `count`."""
    if isinstance(layers, list):
        found = sorted(set(layers))
    else:
        end, number = layers.split(":")
        n = int(number)
        found = list(range(n) if end == "first" else range(count - n, count))
    if found[0] < 0 or found[-1] >= count:
        raise ValueError(f"adapter.layers={layers}: the model has {count} layers")
    return found


@dataclass
class LoraAdapter(PeftAdapter):
    """Matrices of low rank beside linear layers: W x + α/r · B A x.

    Attributes:
        r: Rank, ≥ 1.
        alpha: α ≥ 1.
        targets: Suffixes of the names of the linear layers; empty: peft's for the architecture.
        layers: Of which blocks: `last:4`, `first:4`, or a list of their numbers from 0; None is all.
    """

    name: str = "lora"
    r: Count = 8
    alpha: Count = 16
    targets: list[str] = field(default_factory=list)
    layers: Layers = None


@dataclass
class IA3Adapter(PeftAdapter):
    """Scales of the outputs of attention's layers and of the inputs of a feed-forward layer.

    Attributes:
        targets: Suffixes of the names of the layers; empty: peft's for the architecture.
        feedforward: Targets whose inputs are scaled; empty: peft's.
        layers: Of which blocks, as of `lora`.
    """

    name: str = "ia3"
    targets: list[str] = field(default_factory=list)
    feedforward: list[str] = field(default_factory=list)
    layers: Layers = None

    rules = (
        Rule("feedforward", lambda of: {*of.feedforward} <= {*of.targets}, "must be among adapter.targets"),
    )  # fmt: skip


@dataclass
class PromptAdapter(PeftAdapter):
    """Prompt tuning, Lester et al. 2021: virtual tokens before every text, at first random tokens' embeddings.

    Attributes:
        tokens: Virtual tokens, ≥ 1.
    """

    name: str = "prompt"
    tokens: Count = 10

    kinds: ClassVar[tuple[str, ...]] = ("decoder",)


@dataclass
class PrefixAdapter(PromptAdapter):
    """Keys and values of virtual tokens before every text, in every layer.

    Attributes:
        real_activations: Initialise with the keys and values of random tokens, as MeZO; False: with normals.
    """

    name: str = "prefix"
    tokens: Count = 5
    real_activations: bool = True


@dataclass
class LayersAdapter(AdapterConfig):
    """The parameters of some blocks, or those whose names match a pattern, or, with both settings, the intersection.

    Attributes:
        pattern: Regular expression, searched in the full names; empty matches all.
        layers: Of which blocks, as of `lora`.
    """

    name: str = "layers"
    pattern: str = ""
    layers: Layers = None

    rules = (
        Rule("pattern", lambda of: of.pattern or of.layers is not None,
             "must be given: a regular expression for names of parameters, as layers\\.11\\.; or adapter.layers"),
    )  # fmt: skip

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, valid range) of each invalid value."""
        try:
            re.compile(self.pattern)
            return super().problems()
        except re.error as error:
            return [*super().problems(), ("pattern", f"must be a regular expression ({error})")]


@dataclass
class BiasAdapter(AdapterConfig):
    """The parameters that their modules call `bias`."""

    name: str = "bias"


@dataclass
class ScalesAdapter(AdapterConfig):
    """The scales of quantised weights; the integers do not change.

    **Source**: QZO, Shang et al. 2025. **Deviations**: slopes are not clipped, and no scale has a least value.
    """

    name: str = "scales"

    own_rates: ClassVar[bool] = True


ADAPTERS: dict[str, type[AdapterConfig]] = {
    "none": AdapterConfig,
    "lora": LoraAdapter,
    "prefix": PrefixAdapter,
    "prompt": PromptAdapter,
    "ia3": IA3Adapter,
    "layers": LayersAdapter,
    "bias": BiasAdapter,
    "scales": ScalesAdapter,
}
"""Registry: name -> settings. `zo.lm.adapters.adapt` makes the adapters."""
