"""Memory for a unit's weights during its call, and detection of what refers to it after the call.

The tensors of a call have a storage of their own, whose reference count shows their views.
"""

from __future__ import annotations

import gc
import mmap
from bisect import insort
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

Span: TypeAlias = tuple[int, int]
"""First byte and end of a place in a buffer."""

ALIGNMENT = 64
"""Bytes: alignment of tensors in scratch memory, as torch's own."""


def host_bytes(size: int) -> Tensor:
    """Returns host memory that is returned to the operating system when it is freed.

    The C library keeps freed blocks of up to 32 MiB, and fresh ones of nearly their size do not fit into them.
    """
    if size < 2**20:
        return torch.empty(size, dtype=torch.uint8, device="cpu")
    private = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(private, dtype=torch.uint8)


def aligned(t: Tensor) -> int:
    """Returns the bytes that a tensor takes in scratch memory."""
    return -(-t.numel() * t.element_size() // ALIGNMENT) * ALIGNMENT


class Place(NamedTuple):
    """Memory that a buffer lends.

    Attributes:
        buffer: The buffer.
        memory: Where it is; other memory than the buffer's own if that had no room.
        span: Its first byte there, and its end.
    """

    buffer: Buffer
    memory: Tensor
    span: Span

    @torch.inference_mode(False)
    def tensors(self, like: Sequence[Tensor]) -> list[Tensor]:
        """Returns tensors like others, one behind another, in a storage of their own of this memory."""
        found, at = list[Tensor](), 0
        used = from_dlpack(torch._C._to_dlpack(self.memory[slice(*self.span)]))
        for t in like:
            of = used.view(t.dtype).as_strided(t.shape, t.stride(), at // t.element_size())
            found.append(of.data)  # without a base, which would count as another view
            at += aligned(t)
        return found


class Buffer:
    """Lends memory of one device, which it allocates when it is needed.

    Args:
        size: Bytes. What does not fit gets memory of its own.
        device: Of the memory.

    Attributes:
        size: As given.
        taken: First byte and end of each place that is lent, in their order.
        own: The memory, if there is some.
        allocated: Called with new memory.
    """

    allocated: Callable[[Tensor], None] | None = None

    def __init__(self, size: int, device: torch.device):
        self.size, self._device = size, device
        self.taken: list[Span] = []
        self.own: Tensor | None = None

    def free(self, size: int) -> int | None:
        """Returns the first byte from which so many are free, or None; behind all that is taken, if it is free."""
        at = self.taken[-1][1] if self.taken else 0
        if at + size <= self.size:
            return at
        at = 0
        for begin, end in self.taken:
            if begin - at >= size:
                return at
            at = end
        return None

    def take(self, size: int) -> Place:
        """Lends memory."""
        at = self.free(size)
        if at is None:
            return Place(self, self._allocate(size), (0, size))
        if self.own is None:
            self.own = self._allocate(self.size)
        span = at, at + size
        insort(self.taken, span)
        return Place(self, self.own, span)

    def give_back(self, place: Place) -> None:
        """Takes memory back."""
        if place.memory is self.own and place.span in self.taken:
            self.taken.remove(place.span)

    @torch.inference_mode(False)  # else passes outside of it could not write the memory
    def _allocate(self, size: int) -> Tensor:
        if self._device.type == "cpu":
            made = host_bytes(size)
        else:
            made = torch.empty(size, dtype=torch.uint8, device=self._device)
        if self.allocated is not None:
            self.allocated(made)
        return made


def without_views(output: Any, storages: Collection[int]) -> Any:
    """Returns a module's output with copies in place of tensors of some storages."""
    if isinstance(output, Tensor):
        return output.clone() if _is_in(output, storages) else output
    if isinstance(output, Mapping):  # a dict, or transformers' ModelOutput
        changed = {key: without_views(value, storages) for key, value in output.items()}
        kind: Any = type(output)
        return kind(**changed) if is_dataclass(output) else kind(changed)
    if is_dataclass(output) and not isinstance(output, type):
        values = {f.name: without_views(getattr(output, f.name), storages) for f in fields(output)}
        return type(output)(**values)
    if isinstance(output, (tuple, list)):
        parts = [without_views(part, storages) for part in output]
        return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
    return output


def _is_in(t: Tensor, storages: Collection[int]) -> bool:
    with suppress(RuntimeError, NotImplementedError):  # those without memory of their own
        return t.layout is torch.strided and t.untyped_storage()._cdata in storages
    return False


def in_frames(memory: Sequence[Tensor], storages: Collection[int]) -> int:
    """Counts references to tensors and their views that are mere locals of frames.

    A stored exception holds frames, whose locals nothing computes with.
    """
    own = {*map(id, memory)}
    views = [
        t
        for t in gc.get_objects()
        if type(t) is Tensor and id(t) not in own and _is_in(t, storages)
    ]
    held = [[r for r in gc.get_referrers(t) if r is not views] for t in views]
    found = sum(bool(of) and all(isinstance(r, FrameType) for r in of) for of in held)
    of_tensors = (isinstance(r, FrameType) for t in memory for r in gc.get_referrers(t))
    return found + sum(of_tensors)
