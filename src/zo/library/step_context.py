"""Contexts of a step and of each call of its closure: deferred signals, and autocast."""

import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from zo.extras import HEEDED
from zo.weights.loss import Context

OTHERS = (signal.SIGUSR1, signal.SIGHUP, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)
TIMERS = OTHERS[2:]
"""Belong to the code that they interrupt; all others ask the process to stop."""


class DeferredSignals:
    """Defers signal handlers until a body ends.

    Outside the main thread, where Python calls no handlers, this does nothing.

    Args:
        finish: Whether a request to stop waits for the end of the body also in `delivered`. A second one does not.
    """

    def __init__(self, finish: bool):
        self._finish = finish
        self._state = "closed"  # or `held`, or in `delivered` `open`
        self._received: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "DeferredSignals":
        """Replaces the handlers."""
        if threading.current_thread() is threading.main_thread():
            self._state = "held"
            found = [(number, signal.getsignal(number)) for number in (*HEEDED, *OTHERS)]
            self._before = {number: of for number, of in found if callable(of)}
            try:
                for number in self._before:
                    signal.signal(number, self)
            except BaseException:  # of a handler that is not replaced yet
                self._restore_handlers()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        """Restores the handlers and calls those of the signals received."""
        try:
            self._restore_handlers()
        finally:
            self._state = "closed"
            for number in self._received:
                self._before[number](number, sys._getframe())

    @contextmanager
    def delivered(self) -> Iterator[None]:
        """While this body runs, which may last long, signals interrupt it as `finish` allows."""
        if self._state == "closed":
            yield
            return
        try:
            self._state = "open"
            yield
        finally:
            self._state = "held"

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The handler; one that stays in place after the body passes signals on."""
        if self._state == "closed":
            self._before[number](number, frame)
            return
        waits = self._finish and number not in TIMERS and number not in self._received
        self._received.append(number)
        if self._state == "held" or waits:
            return
        self._state = "held"  # while a handler raises through the body, no other one does
        received, self._received = self._received, []
        for one in received:
            self._before[one](one, frame)
        self._state = "open"

    def _restore_handlers(self) -> None:
        """Restores all handlers, also if one of them raises meanwhile."""
        left, raised = [*self._before], None
        while left:
            try:
                handler: Any = signal.getsignal(left[-1])
                if handler is self:
                    signal.signal(left[-1], self._before[left[-1]])
                left.pop()
            except BaseException as error:
                raised = error
        if raised is not None:
            raise raised


@contextmanager
def step_context(devices: Iterable[str], exact: bool) -> Iterator[Context]:
    """Keeps signals and `torch.autocast` out of a step; yields the context of its closure's calls, which has both.

    An interrupted step would leave displaced weights behind. Under autocast a step's own products would be rounded.

    Args:
        devices: Types of the weights' devices.
        exact: Whether a step that is broken off leaves no trace in the weights. Otherwise Ctrl-C waits until the step
            is made.
    """
    import torch  # here: `zo.run.signals` imports this module before anything slow

    cast = filter(torch.is_autocast_enabled, devices)
    casts = [(device, torch.get_autocast_dtype(device)) for device in cast]
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
