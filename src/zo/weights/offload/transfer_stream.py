"""A thread that transfers weights while the device computes; on CUDA it has a stream of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor


class TransferStream:
    """Runs transfers in order, concurrently with the device's computation.

    The result of a transfer is an event of the GPU's stream. It is None on a CPU, where work is done when its call
    returns.

    Args:
        device: The computing device.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="zo-offload")
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def submit(self, work: Callable[[], object]) -> Future[Any]:
        """Starts a transfer behind the earlier ones, and behind what was launched on the device's own stream."""
        behind = None
        if self._stream is not None:
            behind = torch.cuda.current_stream(self._device).record_event()
        return self._thread.submit(self._do, work, behind)

    def _do(self, work: Callable[[], object], behind: Any) -> Any:
        with torch.no_grad():
            if self._stream is None:
                work()
                return None
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(behind)
                work()
                return self._stream.record_event()

    def wait(self, work: Future[Any]) -> None:
        """Has the device's own stream wait for a transfer; raises the transfer's error."""
        event = work.result()
        if event is not None:
            torch.cuda.current_stream(self._device).wait_event(event)

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
