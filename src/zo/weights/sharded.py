"""Tensors of which each process holds a part: DTensors, as of tensor parallelism and of FSDP2.

A process moves its own part in place. It draws the direction of the whole tensor and keeps its part: directions are
those of the model in one piece, bit for bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Size, Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from zo.noise import Engine, NoiseKey


@dataclass(frozen=True)
class Part:
    """The part of a tensor that this process holds.

    Attributes:
        whole: Shape of the tensor.
        place: Where the part lies in it, a slice per dimension.
    """

    whole: Size
    place: tuple[slice, ...]


def part_of(t: Tensor) -> tuple[Tensor, Part | None]:
    """Returns what this process holds of a tensor, in the same memory, and where that lies; None for a whole tensor.

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


class PartsEngine(Engine):
    """Draws whole tensors and keeps this process's parts.

    Args:
        engine: What draws.
        parts: Of the sharded tensors, by position.
    """

    def __init__(self, engine: Engine, parts: Mapping[int, Part]):
        self.backend = engine.backend
        self._engine = engine
        self._parts = parts

    def normal_(self, out: Tensor, key: NoiseKey, tensor: int) -> Tensor:
        """As `Engine.normal_`.

        Raises:
            ValueError: If a sharded tensor's direction is not one number per value.
        """
        return self._kept(self._engine.normal_, out, key, tensor)

    def rademacher_(self, out: Tensor, key: NoiseKey, tensor: int) -> Tensor:
        """As `Engine.rademacher_`.

        Raises:
            ValueError: If a sharded tensor's direction is not one number per value.
        """
        return self._kept(self._engine.rademacher_, out, key, tensor)

    def _kept(
        self,
        draw: Callable[[Tensor, NoiseKey, int], Tensor],
        out: Tensor,
        key: NoiseKey,
        tensor: int,
    ) -> Tensor:
        """Draws the whole tensor and keeps this process's part."""
        part = self._parts.get(tensor)
        if part is None:
            return draw(out, key, tensor)
        if list(out.shape) != [place.stop - place.start for place in part.place]:
            raise ValueError("a sharded tensor takes directions of one number per value alone")
        return out.copy_(draw(out.new_empty(part.whole), key, tensor)[part.place])
