"""Memory on the device for the weights of modules that are called or fetched, used again and again."""

from __future__ import annotations

from collections.abc import Collection
from weakref import WeakSet

import torch

from zo.weights.offload.transfer_stream import Lane, Mark
from zo.weights.scratch import Scratch


class Pool:
    """Gives out memory, and takes it back once the device is done with it.

    Args:
        device: Of the memory.
        budget: Bytes that it takes at most, unless more are taken at a time.
        lane: Writes to the memory.
    """

    def __init__(self, device: torch.device, budget: int, lane: Lane):
        self._device, self._budget, self._lane = device, budget, lane
        self._free: list[Scratch] = []
        self._ready: dict[Scratch, Mark] = {}  # when the device is done with what is free
        self._made = WeakSet[Scratch]()

    def take(self, size: int) -> tuple[Scratch, Mark]:
        """Returns memory of a size, and the point of the device's work from which it may be written to.

        What is free is taken again, and released where the budget would be exceeded.
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
        self._lane.uses(made.written)
        return (
            made,
            self._lane.mark(),
        )  # the device may still compute in memory that another tensor had

    def release(self) -> None:
        """Frees what is not taken."""
        self._free.clear()
        self._ready.clear()

    def give_back(self, scratches: Collection[Scratch]) -> None:
        """Lets memory be taken again."""
        mark = self._lane.mark()
        for scratch in scratches:
            self._free.append(scratch)
            self._ready[scratch] = mark
