"""Checks of an optimizer's arguments: settings, parameter groups, states and processes."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from numbers import Integral, Real
from types import NoneType
from typing import Any, TypeAlias, get_args, get_type_hints

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from zo.noise import is_compiled
from zo.optim import OPTIMIZERS
from zo.optim.config import MethodConfig
from zo.weights.offloaded import device_of
from zo.weights.sharded import fsdp_modules, part_of
from zo.weights.space import ParameterSpace

Parameters: TypeAlias = (
    nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]
)
Closure: TypeAlias = Callable[..., Tensor | float]

NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    NoneType: "None",
}


def config_of(name: str, settings: Mapping[str, Any]) -> MethodConfig:
    """Returns the method's settings.

    Raises:
        TypeError: If there is no such setting, or one has another type.
        ValueError: If one is out of range.
    """
    kind = OPTIMIZERS[name].config
    hints = get_type_hints(kind)
    types = {of.name: hints[of.name] for of in fields(kind) if of.name != "name"}
    for key in settings.keys() - types.keys():
        close = get_close_matches(key, types, n=1)
        right = f"did you mean {close[0]}?" if close else f"there are {', '.join(types)}"
        raise TypeError(f"{key}: no such setting of {name}; {right}")
    config = kind(**{k: typed(k, value, types[k]) for k, value in settings.items()})
    for key, right in config.problems():
        raise ValueError(f"{key}={getattr(config, key)}: {right}")
    return config


def typed(key: str, value: Any, kind: Any) -> Any:
    """Returns a value as a bool, int, float or str, or None where its type allows that; numpy's numbers as Python's.

    Raises:
        TypeError: If it is of another type.
        ValueError: If it is not finite.
    """
    kinds = get_args(kind) or (kind,)
    if (value is None and NoneType in kinds) or type(value) in kinds:
        found = value
    elif isinstance(value, Integral) and not isinstance(value, bool) and {int, float} & {*kinds}:
        found = int(value)
    elif isinstance(value, Real) and not isinstance(value, bool) and float in kinds:
        found = float(value)
    else:
        names = " or ".join(NAMES[k] for k in kinds)
        raise TypeError(f"{key}={value!r}: must be {names}")
    if isinstance(found, float) and not math.isfinite(found):
        raise ValueError(f"{key}={value}: must be finite")
    return found


def groups_of(params: Any) -> tuple[list[dict[str, Any]], list[tuple[str, Tensor]]]:
    """Returns torch's parameter groups with the tensors that require gradients, and names and tensors of all given."""
    given = list(params)
    groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    made: list[dict[str, Any]] = []
    named: list[tuple[str, Tensor]] = []
    for group in groups:
        of = group["params"]
        if isinstance(of, nn.Module):
            of = of.named_parameters()
        elif isinstance(of, Tensor):
            of = [of]
        pairs = [p if isinstance(p, tuple) else (str(len(named) + i), p) for i, p in enumerate(of)]
        if wrong := [p for _, p in pairs if not isinstance(p, Tensor)]:
            right = "give a model, its tensors, (name, tensor) pairs, or parameter groups"
            raise TypeError(f"params: {type(wrong[0]).__name__} is no tensor; {right}")
        named += pairs
        for key in group.keys() - {"params", "lr", "weight_decay", "initial_lr", "param_names"}:
            raise ValueError(f"{key}: a parameter group has its own lr and weight_decay alone")
        made.append({**group, "params": [p for _, p in pairs if p.requires_grad]})
    return made, named


def noise_for(named: Iterable[tuple[str, Tensor]]) -> str:
    """Returns the noise that is the fastest for the tensors that require gradients."""
    devices = {str(device_of(p)) for _, p in named if p.requires_grad}
    return "philox" if devices and is_compiled(*devices) else "torch"


def check_state(
    state: Mapping[str, Any], settings: Mapping[str, Any], params: ParameterSpace
) -> None:
    """Raises ValueError if a state says that it is of other settings or of tensors of other shapes."""
    for key, given in state.get("settings", {}).items():
        if key in settings and given != settings[key]:
            raise ValueError(
                f"state: made with {key}={given!r}, but this optimizer has {key}={settings[key]!r}; give it the same"
            )
    shapes = state.get("shapes", [list(p.shape) for p in params.parameters])
    for name, p, shape in zip(params.names, params.parameters, shapes, strict=True):
        if list(p.shape) != list(shape):
            raise ValueError(
                f"state: {name} has the shape {tuple(p.shape)}, and had {tuple(shape)}"
            )


def check_processes(space: ParameterSpace, model: nn.Module | None, grouped: bool) -> None:
    """Checks that processes which train together measure one loss.

    Args:
        space: The weights.
        model: The model that holds them, if it was given.
        grouped: Whether each process has its own part of the batch.

    Raises:
        ValueError: If the processes would train on losses or weights that do not belong together.
    """
    if space.shards and model is None and "torch.distributed.fsdp" in sys.modules:
        raise ValueError(
            "model: the weights are sharded, and FSDP2 would compute with those of an earlier forward pass; give the"
            " model, or model= beside its tensors"
        )
    if space.shards and grouped:
        modules = fsdp_modules(model or nn.Module())
        gathered = {id(p) for module in modules for p in module.parameters()}
        for name, p in zip(space.names, space.parameters, strict=True):
            if part_of(p)[1] is not None and id(p) not in gathered:
                raise ValueError(
                    f"group: {name} is sharded, but not by FSDP2; processes that compute one forward pass together need"
                    " the same mini-batch, so give no group"
                )
    if grouped or space.shards:
        return
    if model is not None and any(isinstance(m, DistributedDataParallel) for m in model.modules()):
        raise ValueError(
            "group: the model is DistributedDataParallel's, and without gradients nothing joins its processes; give"
            " group=, as group=torch.distributed.group.WORLD"
        )
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        warnings.warn(
            f"group: not given, so each of torch.distributed's {dist.get_world_size()} processes trains by itself",
            stacklevel=3,
        )
