"""A thread that transfers weights while the device computes; on CUDA it has a stream of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import torch
from torch import Tensor

StreamEvent: TypeAlias = "torch.cuda.Event | None"
"""An event of a GPU's stream; None on a CPU, where work is done when its call returns."""


class TransferStream:
    """Runs transfers in order, concurrently with the device's computation.

    Args:
        device: The computing device.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="zo-offload")
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def submit(self, work: Callable[[], object]) -> Future[StreamEvent]:
        """Starts a transfer behind the earlier ones, and behind what was launched on the device's own stream."""
        return self._thread.submit(self._do, work, self._launched())

    def _do(self, work: Callable[[], object], behind: StreamEvent) -> StreamEvent:
        with torch.no_grad():
            if self._stream is None or behind is None:
                work()
                return None
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(behind)
                work()
                event: torch.cuda.Event = self._stream.record_event()
                return event

    def _launched(self) -> StreamEvent:
        """Returns an event behind the work that was launched on the device's own stream."""
        if self._stream is None:
            return None
        event: torch.cuda.Event = torch.cuda.current_stream(self._device).record_event()
        return event

    def wait(self, work: Future[StreamEvent]) -> None:
        """Has the device's own stream wait for a transfer; raises the transfer's error."""
        event = work.result()
        if event is not None:
            torch.cuda.current_stream(self._device).wait_event(event)

    def synchronize(self, work: Future[StreamEvent]) -> None:
        """Waits until a transfer is done, on the device, too; raises the transfer's error."""
        event = work.result()
        if event is not None:
            event.synchronize()

    def record_stream(self, memory: Tensor) -> None:
        """Keeps a GPU's memory from reuse until this stream is done with it."""
        if self._stream is not None:
            memory.record_stream(self._stream)

    def drain(self) -> None:
        """Waits until all transfers are done."""
        if self._stream is not None:
            self._stream.synchronize()

    def close(self) -> None:
        """Ends the thread after the last transfer."""
        self._thread.shutdown()
