"""A step and the closure that it calls: what surrounds each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from zo.library.arguments import Closure
from zo.library.signals import DeferredSignals
from zo.weights.restore import BranchedLoss


@contextmanager
def around_step(closure: Closure, devices: Iterable[str], exact: bool) -> Iterator[Closure]:
    """Keeps signals and `torch.autocast` out of a step, and lends its closure, in whose calls both are as outside.

    An interrupted step would leave displaced weights behind. Under autocast a step's own products would be rounded.

    Args:
        closure: Returns the loss.
        devices: Types of the weights' devices.
        exact: Whether a step that is broken off leaves no trace in the weights. Otherwise Ctrl-C waits until the step
            is made.
    """
    casts = [
        (device, torch.get_autocast_dtype(device))
        for device in devices
        if torch.is_autocast_enabled(device)
    ]
    with DeferredSignals(finish=not exact) as signals, ExitStack() as off:
        for device, dtype in casts:
            off.enter_context(torch.autocast(device, dtype, enabled=False))

        @contextmanager
        def outside() -> Iterator[None]:
            torch.clear_autocast_cache()  # it keeps casts of weights that have moved since
            with ExitStack() as on, signals.delivered():
                for device, dtype in casts:
                    on.enter_context(torch.autocast(device, dtype))
                yield

        kind = _Branches if isinstance(closure, BranchedLoss) else _Call
        try:
            yield kind(closure, outside)
        finally:
            torch.clear_autocast_cache()


class _Call:
    """Calls a closure in a context."""

    def __init__(self, closure: Any, context: Callable[[], Any]):
        self.closure, self.context = closure, context

    def __call__(self, *args: Any) -> Tensor | float:
        with self.context():
            found: Tensor | float = self.closure(*args)
            return found


class _Branches(_Call):
    """The same of a `BranchedLoss`."""

    def branches(self, n: int) -> list[float]:
        with self.context():
            found: list[float] = self.closure.branches(n)
            return found
