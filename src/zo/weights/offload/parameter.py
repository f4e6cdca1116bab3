"""Parameters whose values are not on the computing device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from zo.weights.patching import GuardedParameter


class Owner(Protocol):
    """The part of `Offload` that its parameters use."""

    device: torch.device

    def whole(self, p: OffloadedParameter) -> Tensor:
        """Returns a parameter's values in the host's memory."""
        ...

    def before_reading(self, p: Tensor) -> None:
        """Brings a parameter's values up to date."""
        ...


class OffloadedParameter(GuardedParameter):
    """A parameter whose values are not on the device; each offload makes its own subclass."""

    offload: ClassVar[Owner]

    def whole(self) -> Tensor:
        """Returns the values in the host's memory."""
        return self.offload.whole(self)


def offloaded(
    by: Owner, model: nn.Module, values: Sequence[tuple[nn.Parameter, Tensor]]
) -> list[Any]:
    """Replaces the values of a model's parameters; returns the parameters, new objects for those on the meta device."""
    reading = staticmethod(by.before_reading)
    kind = type("Offloaded", (OffloadedParameter,), {"offload": by, "before_reading": reading})
    made: dict[nn.Parameter, nn.Parameter] = {}
    for p, of in values:
        if p.is_meta:
            made[p] = nn.Parameter(of.data, p.requires_grad)
        else:
            p.data, made[p] = of.data, p
        made[p].__class__ = kind
    for module in model.modules():
        for name, given in module._parameters.items():
            if given is not None and given in made:
                module._parameters[name] = made[given]
    return [made[p] for p, _ in values]


def device_of(computing: nn.Module | Tensor) -> torch.device:
    """Returns the computing device of a parameter, or of a model's first parameter."""
    p = next(computing.parameters()) if isinstance(computing, nn.Module) else computing
    return p.offload.device if isinstance(p, OffloadedParameter) else p.device
