"""Settings of a model. Needs neither torch nor transformers."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

from zo.optim.config import Rule, Settings, one_of, or_null
from zo.tasks.config import MISSING

STAND_IN = "package:zo/assets/reviews-tiny"  # Source of the tokenizer of models with random weights


class ModelError(ValueError):
    """A model that cannot be used as configured; one sentence that names the key."""


class StatesError(RuntimeError):
    """Outputs of frozen blocks cannot be reused; says why."""


@dataclass
class ModelConfig(Settings):
    """One model.

    Attributes:
        name: registry name, the YAML file's name.
        path: hub id, local directory, or ``package:<package>/<directory or .gguf file>``.
        kind: ``decoder``: scores continuations of a prompt; ``masked``: fills in one mask;
            ``encoder-decoder``: as T5. Found from `path`, see `zo.config.presets.follow_path`.
        weights: ``pretrained``; ``random``: this architecture with random weights and the tokenizer
            of reviews-tiny, without reading `path` if `architecture` is given. For times and memory.
        architecture: transformers' configuration, ``model_type`` among it; empty: read from `path`.
        revision: the hub's commit or branch.
        gguf_file: name of the GGUF file at a `path` that is a hub id or a directory.
        sha256: of the GGUF file; checked before it is converted.
        attention: transformers' attention implementation.
        quantization: ``int8``, ``int4`` or ``nf4``: of the linear layers' weights, see `zo.lm.quantise`.
        offload: where unused weights are kept: ``cpu``, the host's memory, or ``disk``, see `zo.weights.offload`. Not
            part of a run's identity.
        lr_grid: optimizer name -> learning rates of its sweep.
        lr_grid_of: name of the model of `lr_grid`, if `path` is another model.
        paper: the paper's ``precision``, ``dtype`` and ``loss``, for ``precision=paper``.
        install: the command that installs the weights, shown when they cannot be found.
    """

    name: str = MISSING
    path: str = MISSING
    kind: Annotated[str, one_of("decoder", "masked", "encoder-decoder")] = "decoder"
    weights: Annotated[str, one_of("pretrained", "random")] = "pretrained"
    architecture: dict[str, Any] = field(default_factory=dict)
    revision: str | None = None
    gguf_file: str | None = None
    sha256: str | None = None
    attention: str = "sdpa"
    quantization: Annotated[str | None, or_null(one_of("int8", "int4", "nf4"))] = None
    offload: Annotated[str | None, or_null(one_of("cpu", "disk"))] = None
    lr_grid: dict[str, Any] = field(default_factory=dict)
    lr_grid_of: str = ""
    paper: dict[str, str] = field(default_factory=dict)
    install: str | None = None

    rules = (
        Rule("path", lambda of: bool(of.path.strip()), "must be a hub id or a directory"),
        Rule("offload", lambda of: not of.offload or of.weights != "random",
             "must be null with weights=random, which are made on the device"),
        Rule("offload", lambda of: None in (of.offload, of.quantization),
             "must be null with quantization={of.quantization}"),
        Rule("architecture", lambda of: not of.architecture or "model_type" in of.architecture,
             "must name its model_type"),
    )  # fmt: skip

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, valid range) of each invalid value."""
        return super().problems() + problems_of_rates(self.lr_grid)


def problems_of_rates(grid: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns (key, valid range) of each method whose learning rates are invalid."""
    right = "must be a list of numbers greater than 0, as [1e-4,1e-3]"
    wrong = (name for name, rates in grid.items() if not _are_rates(rates))
    return [(f"lr_grid.{name}", right) for name in wrong]


def _are_rates(rates: Any) -> bool:
    listed = rates if isinstance(rates, list) else []
    return listed != [] and all(isinstance(x, int | float) and 0 < x < math.inf for x in listed)
