"""Time that work takes on its device, without waiting for the device."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch

Events: TypeAlias = list[torch.cuda.Event]


class Stopwatch:
    """Adds up the time of pieces of work.

    On a CPU that is wall time. A GPU is behind the process that launches its work: there, events in its stream mark
    where a piece begins and ends, and `seconds` takes in the pieces that it has passed by then. Nobody waits: what is
    still under way counts when `seconds` is read next. Of several GPUs the slowest counts.

    Args:
        devices: Where the work is done, as `cpu` or `cuda:1`.
    """

    def __init__(self, devices: Iterable[str]):
        self._gpus = [torch.device(device) for device in devices if device.startswith("cuda")]
        self._passed = 0.0
        self._pending = deque[tuple[Events, Events]]()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts the work that the body does or launches, also when it raises."""
        if self._gpus:
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
        while self._pending and all(event.query() for event in self._pending[0][1]):
            pairs = zip(*self._pending.popleft(), strict=True)
            self._passed += max(begin.elapsed_time(end) for begin, end in pairs) / 1e3  # of ms
        return self._passed

    def _mark(self) -> Events:
        """Returns an event per GPU, at the end of what has been launched."""
        events = [torch.cuda.Event(enable_timing=True) for _ in self._gpus]
        for event, gpu in zip(events, self._gpus, strict=True):
            event.record(torch.cuda.current_stream(gpu))
        return events
