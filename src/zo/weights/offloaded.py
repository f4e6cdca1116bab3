"""Parameters whose values are not on the computing device. `zo.weights.offload` makes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.utils import swap_tensors

from zo.weights.patching import GuardedParameter, Guards

if TYPE_CHECKING:
    from zo.weights.offload.offloader import Offload


class OffloadError(RuntimeError):
    """A file of offloaded weights was removed, changed or cannot be read; one sentence that names it."""


class OffloadRefused(ValueError):
    """The model, the method or the disk does not support offload; one sentence."""


class OffloadedParameter(GuardedParameter):
    """A parameter whose values are not on the device; each offload makes its own subclass."""

    offload: ClassVar[Offload]


def offloaded(by: Offload, values: Sequence[tuple[nn.Parameter, Tensor]]) -> Guards:
    """Replaces the values of parameters, and guards them; returns the guards."""
    kind = OffloadedParameter.of(by.before_reading)
    kind.offload = by
    for p, of in values:
        if p.is_meta:  # takes no data of another device
            swap_tensors(p, nn.Parameter(of, p.requires_grad))
        else:
            p.data = of
    guards = Guards([p for p, _ in values], kind)
    guards.set(True)
    return guards


def device_of(computing: nn.Module | Tensor) -> torch.device:
    """Returns the computing device of a parameter, or of a model's first parameter."""
    p = next(computing.parameters()) if isinstance(computing, nn.Module) else computing
    return p.offload.device if isinstance(p, OffloadedParameter) else p.device


def offload_of(parameters: Iterable[Tensor]) -> Offload | None:
    """Returns the offload of parameters, if there is one."""
    return next((p.offload for p in parameters if isinstance(p, OffloadedParameter)), None)


def gigabytes(size: int) -> str:
    """Returns a size in GB, as text."""
    return f"{size / 1e9:.3g} GB"
