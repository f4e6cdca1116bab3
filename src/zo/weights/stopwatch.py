"""Time that work takes on its device, by its kind, without waiting for the device."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import torch

Events: TypeAlias = "list[torch.cuda.Event]"
"""One per GPU, in its current stream."""


class Stopwatch:
    """Adds up the time of pieces of work, each of a kind. A piece within another one stops that one's time.

    On a CPU that is wall time. On a GPU, events in its stream mark where a piece begins and ends. `seconds` adds up the
    pieces that the GPU has finished, without waiting for it: unfinished ones count when `seconds` is called next. Of
    several GPUs the slowest counts.

    Args:
        devices: Where the work is done, as `cpu` or `cuda:1`.

    Attributes:
        counts: Pieces of each kind.
    """

    def __init__(self, devices: Iterable[str]):
        self.counts = Counter[str]()
        self._gpus = [torch.device(device) for device in devices if device.startswith("cuda")]
        self._passed: dict[str, float] = defaultdict(float)
        self._running: list[str] = []  # the innermost last
        self._began = 0.0
        self._pending = deque[tuple[str, Events, Events]]()  # of GPUs
        self._last: Events = []

    def running(self, kind: str, count: int = 1) -> _Piece:
        """Times the work that the body does or launches, also when it raises, and adds `count` to its pieces."""
        self.counts[kind] += count
        return _Piece(self, kind)

    def seconds(self, kind: str) -> float:
        """Returns the time of all finished work of a kind."""
        self._add_finished()
        return self._passed[kind]

    def _lap(self) -> None:
        """Ends the running piece, and begins the next one."""
        if self._gpus:
            self._lap_on_gpus()
            return
        now = time.perf_counter()
        if self._running:
            self._passed[self._running[-1]] += now - self._began
        self._began = now

    def _lap_on_gpus(self) -> None:
        """Records an event per GPU behind the launched work."""
        now = [torch.cuda.Event(enable_timing=True) for _ in self._gpus]
        for event, gpu in zip(now, self._gpus, strict=True):
            event.record(torch.cuda.current_stream(gpu))
        if self._running:
            self._pending.append((self._running[-1], self._last, now))
            self._add_finished()
        self._last = now

    def _add_finished(self) -> None:
        """Adds up the pieces that the GPUs have finished."""
        while self._pending and all(event.query() for event in self._pending[0][2]):
            kind, begin, end = self._pending.popleft()
            pairs = zip(begin, end, strict=True)
            self._passed[kind] += float(max(a.elapsed_time(b) for a, b in pairs)) / 1e3  # of ms


class _Piece(NamedTuple):
    """A piece of work, while a `with` runs; a generator would take four times as long."""

    watch: Stopwatch
    kind: str

    def __enter__(self) -> None:
        self.watch._lap()
        self.watch._running.append(self.kind)

    def __exit__(self, *_: object) -> None:
        self.watch._lap()
        self.watch._running.pop()
