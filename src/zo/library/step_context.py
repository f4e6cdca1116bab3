"""What surrounds a step, and each call of its closure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch

from zo.library.signals import DeferredSignals
from zo.weights.loss import Context


@contextmanager
def step_context(devices: Iterable[str], exact: bool) -> Iterator[Context]:
    """Keeps signals and `torch.autocast` out of a step; yields the context of its closure's calls, which has both.

    An interrupted step would leave displaced weights behind. Under autocast a step's own products would be rounded.

    Args:
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

        try:
            yield outside
        finally:
            torch.clear_autocast_cache()
