"""Memory for a unit's weights during its call, and detection of views that outlive the call.

Views are detected by the reference count of the memory's storage. The passes over the weights write through a second
storage of the same memory, so that tensors that they leave alive are not counted: numba's first compilation of a kernel
keeps an exception whose traceback holds the frames of the pass.
"""

from __future__ import annotations

import gc
import mmap
from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

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


class Scratch:
    """Bytes on one device.

    Attributes:
        memory: What modules compute with.
        written: The same bytes in another storage: what the passes over the weights write to.
        places: How many views of `memory` are kept for calls; `views` leaves them out.
    """

    places = 0

    def __init__(self, size: int, device: torch.device):
        with torch.inference_mode(False):  # else passes outside of it could not write the memory
            on_host = device.type == "cpu"
            self.written = (
                host_bytes(size) if on_host else torch.empty(size, dtype=torch.uint8, device=device)
            )
            self.memory = from_dlpack(torch._C._to_dlpack(self.written))
        self._address = self.memory.untyped_storage()._cdata

    def part(self, like: Tensor, begin: int = 0) -> tuple[Tensor, Tensor]:
        """Returns a tensor like another one at a byte, as views of `memory` and of `written`.

        Made in inference mode, they can be written there alone.
        """
        shape, at, step = like.shape, begin // like.element_size(), like.stride()
        used, written = self.memory.view(like.dtype), self.written.view(like.dtype)
        # `data` of each: a view would keep its base alive, which counts as another view.
        return used.as_strided(shape, step, at).data, written.as_strided(shape, step, at).data

    def views(self) -> int:
        """Returns how many tensors share the storage of `memory`."""
        return torch._C._storage_Use_Count(self._address) - self.places

    def holds(self, t: Tensor) -> bool:
        """Returns whether a tensor is a view of the memory."""
        inside = 0 <= t.data_ptr() - self.memory.data_ptr() < len(self.memory)
        return inside and t.untyped_storage()._cdata == self._address

    def keeps(self, views: int) -> bool:
        """Returns whether more than `views` tensors are left, not counting garbage and mere locals of frames.

        A stored exception holds frames, whose locals nothing computes with.
        """
        gc.collect()
        if self.views() <= views:
            return False
        here = [
            t
            for t in gc.get_objects()
            if type(t) is Tensor
            and t.layout is torch.strided
            and t is not self.memory
            and self.holds(t)
        ]
        held = [[r for r in gc.get_referrers(t) if r is not here] for t in here]
        in_frames = [bool(of) and all(isinstance(r, FrameType) for r in of) for of in held]
        bases = {id(t._base) for t, does in zip(here, in_frames, strict=True) if does}
        alive = sum(not of and id(t) in bases for t, of in zip(here, held, strict=True))
        return self.views() - sum(in_frames) - alive > views


class Place(NamedTuple):
    """Memory that a buffer lends.

    Attributes:
        buffer: The buffer.
        scratch: Where it is; other memory than the buffer's own if that had no room.
        begin: Its first byte.
        end: Its end.
    """

    buffer: Buffer
    scratch: Scratch
    begin: int
    end: int


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
        self.taken: list[tuple[int, int]] = []
        self.own: Scratch | None = None

    def free(self, size: int) -> int | None:
        """Returns the first byte from which so many are free, or None."""
        at = 0
        for begin, end in self.taken:
            if begin - at >= size:
                break
            at = end
        return at if at + size <= self.size else None

    def take(self, size: int) -> Place:
        """Lends memory."""
        at = self.free(size)
        if at is None:
            return Place(self, self._allocate(size), 0, size)
        self.own = self.own or self._allocate(self.size)
        insort(self.taken, (at, at + size))
        return Place(self, self.own, at, at + size)

    def give_back(self, place: Place) -> None:
        """Takes memory back."""
        if place.scratch is self.own and place[2:] in self.taken:
            self.taken.remove(place[2:])

    def _allocate(self, size: int) -> Scratch:
        made = Scratch(size, self._device)
        if self.allocated is not None:
            self.allocated(made.written)
        return made


def without_views(output: Any, marks: Mapping[Scratch, int]) -> Any:
    """Returns a module's output with copies in place of views of scratch memory.

    Args:
        output: Of the module.
        marks: The scratch memory that the module computed with, and its `views` before the call.
    """
    if any(scratch.views() > views for scratch, views in marks.items()):
        return _copied(output, marks)
    return output


def _copied(output: Any, scratches: Iterable[Scratch]) -> Any:
    """Returns an output with copies in place of views."""
    if isinstance(output, Tensor):
        is_view = any(
            scratch.holds(output) for scratch in scratches if scratch.memory.device == output.device
        )
        return output.clone() if is_view else output
    if isinstance(output, Mapping):  # a dict, or transformers' ModelOutput
        changed = {key: _copied(value, scratches) for key, value in output.items()}
        kind: Any = type(output)
        return kind(**changed) if is_dataclass(output) else kind(changed)
    if is_dataclass(output) and not isinstance(output, type):
        values = {f.name: _copied(getattr(output, f.name), scratches) for f in fields(output)}
        return type(output)(**values)
    if isinstance(output, (tuple, list)):
        parts = [_copied(part, scratches) for part in output]
        return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
    return output
