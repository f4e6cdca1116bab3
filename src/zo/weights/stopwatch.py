"""Time that work takes on its device, without waiting for the device."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Adds up the time of pieces of work.

    On a CPU that is wall time. A GPU is behind the process that launches its work: there, events in its stream mark
    where a piece begins and ends, and `seconds` takes in the pieces that it has passed by then. Nobody waits: what is
    still under way counts when `seconds` is read next.

    Args:
        device: Where the work is done.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._passed = 0.0
        self._pending = deque[tuple[torch.cuda.Event, torch.cuda.Event]]()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts the work that the body does or launches, also when it raises."""
        if self._device.type == "cuda":
            begin = self._mark()
            try:
                yield
            finally:
                self._pending.append((begin, self._mark()))
            return
        start = time.perf_counter()
        try:
            yield
        finally:
            self._passed += time.perf_counter() - start

    @property
    def seconds(self) -> float:
        """Time of all work that is done."""
        while self._pending and self._pending[0][1].query():
            begin, end = self._pending.popleft()
            self._passed += begin.elapsed_time(end) / 1e3  # it gives milliseconds
        return self._passed

    def _mark(self) -> torch.cuda.Event:
        """Returns an event at the end of what has been launched."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
