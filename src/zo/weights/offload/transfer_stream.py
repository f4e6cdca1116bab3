"""What fetches weights while the device computes: a thread, which on CUDA launches on a stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor

StreamEvent: TypeAlias = "torch.cuda.Event | None"
"""A point in a GPU's work; None on a CPU, where work is done when its call returns."""


class TransferStream:
    """Does one piece of work after another, beside what the device computes.

    Args:
        device: Whose weights are fetched.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="zo-offload")
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def submit(
        self, work: Callable[[], object], behind: Sequence[StreamEvent] = ()
    ) -> Future[StreamEvent]:
        """Starts a piece of work behind those that were started before.

        Args:
            work: What is called.
            behind: Points of the device's own work that come first.
        """
        return self._thread.submit(self._do, work, behind)

    def _do(self, work: Callable[[], object], behind: Sequence[StreamEvent]) -> StreamEvent:
        with torch.no_grad(), self._on_stream():
            if self._stream is not None:
                for event in behind:
                    if event is not None:
                        self._stream.wait_event(event)
            work()
            return None if self._stream is None else self._stream.record_event()

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield

    def record_event(self) -> StreamEvent:
        """Returns the point at the end of what the device was given to compute."""
        if self._stream is None:
            return None
        event: torch.cuda.Event = torch.cuda.current_stream(self._device).record_event()
        return event

    def wait(self, work: Future[StreamEvent]) -> None:
        """Has what the device computes from now on wait for a piece of work; raises what it raised."""
        event = work.result()
        if event is not None:
            torch.cuda.current_stream(self._device).wait_event(event)

    def synchronize(self, work: Future[StreamEvent]) -> None:
        """Waits until a piece of work is done, on the device, too; raises what it raised."""
        event = work.result()
        if event is not None:
            event.synchronize()

    def record_stream(self, memory: Tensor) -> None:
        """Has a GPU's memory wait for this lane before another tensor gets it."""
        if self._stream is not None:
            memory.record_stream(self._stream)

    def drain(self) -> None:
        """Waits until what was written to the host's memory is there."""
        if self._stream is not None:
            self._stream.synchronize()

    def close(self) -> None:
        """Ends the thread once it is done."""
        self._thread.shutdown()
