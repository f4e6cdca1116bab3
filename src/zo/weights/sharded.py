"""DTensors of tensor parallelism and FSDP2: each process updates its local part in place.

Directions are bit-identical to those of the unsharded model: a process draws its part of the full tensor's direction.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Size, Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from zo.noise import Engine, Move, NoiseKey, PhiloxEngine
from zo.weights.offloaded import OffloadedParameter

if TYPE_CHECKING:
    from zo.noise.engines import ProgramCall


@dataclass(frozen=True)
class Part:
    """This process's part of a sharded tensor.

    Attributes:
        whole: Shape of the full tensor.
        place: Position of the part, a slice per dimension.
    """

    whole: Size
    place: tuple[slice, ...]

    @property
    def begin(self) -> int | None:
        """Flat position of the part in the full tensor; None if the part is not contiguous there."""
        sizes = [place.stop - place.start for place in self.place]
        if sizes[1:] != list(self.whole[1:]):
            return None
        return self.place[0].start * math.prod(self.whole[1:]) if sizes else 0

    def in_whole(self, t: Tensor) -> Tensor:
        """Returns a tensor of the full shape with `t` at the part's position and ones elsewhere."""
        whole = t.new_ones(self.whole)
        whole[self.place] = t
        return whole

    @contextmanager
    def wholes(self, tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """Yields tensors as of `in_whole`; afterwards copies the part of each back."""
        made = [self.in_whole(t) for t in tensors]
        yield made
        for t, whole in zip(tensors, made, strict=True):
            t.copy_(whole[self.place])


def part_of(t: Tensor) -> tuple[Tensor, Part | None]:
    """Returns a tensor's local part, which shares its memory, and the part's position; None if it is not sharded.

    Raises:
        ValueError: If the tensor is neither sharded by dimensions nor replicated.
    """
    if not is_traceable_wrapper_subclass(t):
        return t, None
    from torch.distributed.tensor import DTensor, Replicate, Shard  # slow to import

    if not isinstance(t, DTensor):
        return t, None
    begin, end = [0] * t.dim(), list(t.shape)
    for mesh_dim, placement in enumerate(t.placements):
        if isinstance(placement, Replicate):
            continue
        if type(placement) is not Shard:
            raise ValueError(f"is placed as {placement}; Shard and Replicate can be moved")
        dim = placement.dim % t.dim()
        size = -(-(end[dim] - begin[dim]) // t.device_mesh.size(mesh_dim))  # as torch.chunk
        begin[dim] = min(begin[dim] + size * t.device_mesh.get_local_rank(mesh_dim), end[dim])
        end[dim] = min(begin[dim] + size, end[dim])
    place = tuple(slice(first, last) for first, last in zip(begin, end, strict=True))
    local = t.detach().to_local()
    assert list(local.shape) == [last - first for first, last in zip(begin, end, strict=True)]
    return local, Part(t.shape, place)


def whole(t: Tensor) -> Tensor:
    """Returns the full tensor in memory; all-gathers a DTensor (collective)."""
    if isinstance(t, OffloadedParameter):
        return t.offload.whole(t)
    if not is_traceable_wrapper_subclass(t):
        return t
    from torch.distributed.tensor import DTensor  # slow to import

    return t.full_tensor() if isinstance(t, DTensor) else t


def keep_sharded(model: nn.Module) -> None:
    """Has FSDP2 reshard after each forward pass: all-gathered weights would be stale after a probe."""
    for module in fsdp_modules(model):
        module.set_reshard_after_forward(True, recurse=False)
        module.reshard()


def fsdp_modules(model: nn.Module) -> list[Any]:
    """Returns a model's FSDP2 modules."""
    if "torch.distributed.fsdp" not in sys.modules:
        return []
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def shared_as(t: Tensor, local: Tensor) -> Tensor:
    """Returns `local` as a DTensor with the placement of `t`; `local` itself if `t` is not sharded."""
    if part_of(t)[1] is None:
        return local
    from torch.distributed.tensor import DTensor  # slow to import

    assert isinstance(t, DTensor)
    mesh, placements = t.device_mesh, t.placements
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=t.shape, stride=t.stride()
    )


class _OfParts:
    """Base of the engines that draw local parts, with the values that another draws for full tensors.

    Args:
        engine: The other.
        parts: Of the sharded tensors, by position.
    """

    def __init__(self, engine: Any, parts: Mapping[int, Part]):
        self.backend, self.engine, self.parts = engine.backend, engine, parts


class PartsEngine(_OfParts, Engine):
    """Draws full tensors and returns the local parts."""

    def draw_(self, out: Tensor, key: NoiseKey, tensor: int, signs: bool = False) -> Tensor:
        """As `Engine.draw_`.

        Raises:
            ValueError: If a sharded tensor's direction is not one number per value.
        """
        part = self.parts.get(tensor)
        if part is None:
            drawn: Tensor = self.engine.draw_(out, key, tensor, signs)
            return drawn
        _check_shape(out, part)
        whole = out.new_empty(part.whole)
        return out.copy_(self.engine.draw_(whole, key, tensor, signs)[part.place])


class PhiloxPartsEngine(_OfParts, PhiloxEngine):
    """Draws and adds local parts under Philox noise; the full tensor only if the part is not contiguous in it."""

    @property
    def runs_programs(self) -> bool:  # type: ignore[override]
        """As of the engine."""
        return bool(self.engine.runs_programs)

    def _run_program(self, *call: *ProgramCall) -> None:
        program, lists, positions, keeps = call
        for j, i in enumerate(positions):
            part, tensors = self.parts.get(i), [of[j] for of in lists]
            with nullcontext(tensors) if part is None else part.wholes(tensors) as wholes:
                self.engine.run(program, [[t] for t in wholes], [i], keeps[j : j + 1])

    def _run(self, out: Tensor, theta: Tensor | None, move: Move) -> None:
        part = self.parts.get(move.tensor)
        if part is None:
            self.engine._run(out, theta, move)
            return
        _check_shape(out, part)
        if part.begin is not None:
            self.engine._run(out, theta, move._replace(start=part.begin, rows=None))
            return
        to = out.new_empty(part.whole)
        of, h = (None if t is None else part.in_whole(t) for t in (theta, move.scale))
        self.engine._run(to, of, move._replace(start=0, scale=h, rows=None))
        out.copy_(to[part.place])


def _check_shape(out: Tensor, part: Part) -> None:
    """Raises ValueError if a sharded tensor's direction is not one number per value."""
    if list(out.shape) != [place.stop - place.start for place in part.place]:
        raise ValueError("a sharded tensor takes directions of one number per value alone")
