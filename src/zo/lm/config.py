"""Settings of a model. Needs neither torch nor transformers."""

import math
from dataclasses import dataclass, field
from typing import Any

from zo.tasks.config import MISSING

KINDS = ("decoder", "masked", "encoder-decoder")
WEIGHTS = ("pretrained", "random")
OFFLOADS = (None, "cpu", "disk")
QUANTIZATIONS = (None, "int8", "int4", "nf4")
STAND_IN = "package:zo/assets/reviews-tiny"
"""Source of the tokenizer of models with random weights."""


class ModelError(ValueError):
    """A model that cannot be used as configured; one sentence that names the key."""


class StatesError(RuntimeError):
    """Outputs of frozen blocks cannot be reused; says why."""


@dataclass
class ModelConfig:
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
    kind: str = "decoder"
    weights: str = "pretrained"
    architecture: dict[str, Any] = field(default_factory=dict)
    revision: str | None = None
    gguf_file: str | None = None
    sha256: str | None = None
    attention: str = "sdpa"
    quantization: str | None = None
    offload: str | None = None
    lr_grid: dict[str, Any] = field(default_factory=dict)
    lr_grid_of: str = ""
    paper: dict[str, str] = field(default_factory=dict)
    install: str | None = None

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, valid range) of each invalid value."""
        found = [
            (f"lr_grid.{name}", "must be a list of numbers greater than 0, as [1e-4,1e-3]")
            for name, grid in self.lr_grid.items()
            if not (isinstance(grid, list) and grid and all(map(_is_rate, grid)))
        ]
        for key, options in (("kind", KINDS), ("weights", WEIGHTS)):
            if getattr(self, key) not in options:
                found.append((key, f"must be {' or '.join(options)}"))
        if self.quantization not in QUANTIZATIONS:
            right = "must be int8, int4, nf4 or null"
            found.append(("quantization", right))
        if self.offload not in OFFLOADS:
            found.append(("offload", "must be cpu, disk or null"))
        elif self.offload is not None and self.weights == "random":
            found.append(
                ("offload", "must be null with weights=random, which are made on the device")
            )
        elif self.offload is not None and self.quantization is not None:
            found.append(("offload", f"must be null with quantization={self.quantization}"))
        if self.architecture and "model_type" not in self.architecture:
            found.append(("architecture", "must name its model_type"))
        return found


def _is_rate(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 < value < math.inf
