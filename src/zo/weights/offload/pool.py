"""A pool of device memory for fetched weights."""

from __future__ import annotations

from collections.abc import Collection
from weakref import WeakSet

import torch

from zo.weights.offload.transfer_stream import StreamEvent, TransferStream
from zo.weights.scratch import Scratch


class Pool:
    """Lends device memory, and reuses it once the device is done with it.

    Args:
        device: Of the memory.
        budget: Most bytes, unless more are lent at a time.
        transfers: The stream that writes to the memory.
    """

    def __init__(self, device: torch.device, budget: int, transfers: TransferStream):
        self._device, self._budget, self._transfers = device, budget, transfers
        self._free: list[Scratch] = []
        self._ready: dict[Scratch, StreamEvent] = {}  # when the device is done with free memory
        self._made = WeakSet[Scratch]()

    def take(self, size: int) -> tuple[Scratch, StreamEvent]:
        """Returns memory of a size, and the event after which it may be written.

        Free memory of the size is reused; other free memory is released where the budget would be exceeded.
        """
        for scratch in self._free:
            if len(scratch.memory) == size:
                self._free.remove(scratch)
                return scratch, self._ready.pop(scratch)
        taken = sum(len(scratch.memory) for scratch in self._made)
        while self._free and taken + size > self._budget:
            released = self._free.pop(0)
            del self._ready[released]
            taken -= len(released.memory)
        made = Scratch(size, self._device)
        self._made.add(made)
        self._transfers.record_stream(made.written)
        # The device may still compute in memory that another tensor had.
        return made, self._transfers.record_event()

    def release(self) -> None:
        """Frees the memory that is not lent."""
        self._free.clear()
        self._ready.clear()

    def give_back(self, scratches: Collection[Scratch]) -> None:
        """Takes memory back."""
        event = self._transfers.record_event()
        for scratch in scratches:
            self._free.append(scratch)
            self._ready[scratch] = event
