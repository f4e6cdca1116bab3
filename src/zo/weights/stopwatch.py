"""Time that work takes on its device, by its kind, without waiting for the device."""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias, cast

import torch

Timestamp: TypeAlias = "float | list[torch.cuda.Event]"


class Stopwatch:
    """Adds up the time of pieces of work, each of a kind. A piece within another one stops that one's time.

    On a CPU that is wall time. A GPU is behind the process that launches its work: there, events in its stream mark
    where a piece begins and ends, and `seconds` takes in the pieces that it has passed by then. Nobody waits: what is
    still under way counts when `seconds` is asked next. Of several GPUs the slowest counts.

    Args:
        devices: Where the work is done, as `cpu` or `cuda:1`.

    Attributes:
        counts: Pieces of each kind.
    """

    def __init__(self, devices: Iterable[str]):
        self.counts = Counter[str]()
        self._gpus = [torch.device(device) for device in devices if device.startswith("cuda")]
        self._passed: dict[str, float] = defaultdict(float)
        self._pending = deque[tuple[str, Timestamp, Timestamp]]()
        self._running: list[str] = []  # the innermost last
        self._last: Timestamp = []

    @contextmanager
    def running(self, kind: str, count: int = 1) -> Iterator[None]:
        """Times the work that the body does or launches, also when it raises, and adds `count` to its pieces."""
        self.counts[kind] += count
        self._lap()
        self._running.append(kind)
        try:
            yield
        finally:
            self._lap()
            self._running.pop()

    def seconds(self, kind: str) -> float:
        """Returns the time of all work of a kind that is done."""
        self._take_in()
        return self._passed[kind]

    def _lap(self) -> None:
        """Ends the piece that is under way, and begins the next one."""
        now = self._now()
        if self._running:
            self._pending.append((self._running[-1], self._last, now))
            self._take_in()
        self._last = now

    def _take_in(self) -> None:
        """Adds up the pieces that are done."""
        while self._pending and _passed(self._pending[0][2]):
            kind, begin, end = self._pending.popleft()
            self._passed[kind] += _between(begin, end)

    def _now(self) -> Timestamp:
        """Returns the time, or an event per GPU at the end of what has been launched."""
        if not self._gpus:
            return time.perf_counter()
        events = [torch.cuda.Event(enable_timing=True) for _ in self._gpus]
        for event, gpu in zip(events, self._gpus, strict=True):
            event.record(torch.cuda.current_stream(gpu))
        return events


def _passed(at: Timestamp) -> bool:
    return isinstance(at, float) or all(event.query() for event in at)


def _between(begin: Timestamp, end: Timestamp) -> float:
    if isinstance(begin, list) and isinstance(end, list):
        return float(max(a.elapsed_time(b) for a, b in zip(begin, end, strict=True))) / 1e3  # of ms
    return cast(float, end) - cast(float, begin)
