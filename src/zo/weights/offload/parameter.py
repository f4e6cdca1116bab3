"""Parameters whose values lie outside of the device that computes with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from zo.weights.guarded import GuardedParameter

if TYPE_CHECKING:
    from zo.weights.offload.visits import Offload


class OffloadedParameter(GuardedParameter):
    """A parameter whose values lie outside of the device; every offload makes a subclass of its own."""

    offload: ClassVar[Offload]

    def whole(self) -> Tensor:
        """Returns the values in the host's memory."""
        return self.offload.whole(self)


def offloaded(
    by: Offload, model: nn.Module, values: Sequence[tuple[nn.Parameter, Tensor]]
) -> list[Any]:
    """Returns a model's parameters with their values elsewhere; other objects where they were on the meta device."""
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


def offload_of(parameters: Sequence[Tensor]) -> Offload | None:
    """Returns the offload that parameters are of, if there is one."""
    return next((p.offload for p in parameters if isinstance(p, OffloadedParameter)), None)


def device_of(computing: nn.Module | Tensor) -> torch.device:
    """Returns the device that a parameter, or a model by its first parameter, is computed with on."""
    p = next(computing.parameters()) if isinstance(computing, nn.Module) else computing
    return p.offload.device if isinstance(p, OffloadedParameter) else p.device
