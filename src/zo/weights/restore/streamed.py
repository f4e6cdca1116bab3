"""restore=streamed: each module computes with a displaced copy of its own weights, and θ never moves.

During a probe, a module that holds trainable tensors writes displaced copies of them into a buffer when it is called,
computes with them, and releases them when it returns or raises. An embedding displaces only the rows that it looks up.
The buffer is as large as the largest module. The probe is exact, and it measures what `snapshot` measures, bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from zo.weights.directions import Terms
from zo.weights.restore.base import RestorePolicy
from zo.weights.storage import storage_key
from zo.weights.updates import add_, add_rows_

if TYPE_CHECKING:
    from zo.weights.space import ParameterSpace

Forward: TypeAlias = Callable[..., Any]
Holders: TypeAlias = dict[nn.Module, list[tuple[str, int]]]
"""Modules and the tensors that they hold themselves: (name in the module, index of the tensor)."""

ALIGNMENT = 64
"""Bytes: tensors in the buffer begin at multiples of it, as torch's own do."""


class Streamed(RestorePolicy):
    """Replaces the `forward` of the modules that hold θ's tensors while a probe is under way.

    Raises:
        ValueError: If the model is missing, no module holds a tensor, one holds it in another shape or layout, or
            devices differ.
    """

    name = "streamed"

    def __init__(self, space: ParameterSpace, model: nn.Module | None):
        super().__init__(space, model)
        if model is None:
            raise ValueError("restore=streamed: the tensors' model is needed")
        if len({t.device for t in space.tensors}) != 1:
            raise ValueError("restore=streamed: the trainable tensors are on several devices")
        self._holders = _holders(model, space.tensors, space.names)
        self._sizes = _sizes(space.tensors)
        self.bytes = _nested_bytes(model, self._holders, self._sizes)
        self._buffer = torch.empty(self.bytes, dtype=torch.uint8, device=space.tensors[0].device)
        self._used = 0  # bytes of the buffer
        self._displaced: dict[int, Tensor] = {}  # by tensor index, while a module computes with it
        self._terms: Terms = ()
        self._unread = set(range(len(space.tensors)))  # never displaced until now
        self._forwards: dict[nn.Module, Forward | None] = {}  # what `restore` puts back

    def to(self, terms: Terms) -> None:
        """Makes the modules compute with θ + Σ c_j z_j from now on."""
        self.space.passes += bool(terms)
        self._terms = terms
        if not self._forwards:
            self._forwards = {m: m.__dict__.get("forward") for m in self._holders}
            for module in self._holders:
                module.__dict__["forward"] = functools.partial(self._call, module, module.forward)

    def restore(self) -> None:
        """Leaves the model as it was before the first `to`."""
        self._terms = ()
        for module, forward in self._forwards.items():
            if forward is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = forward
        self._forwards = {}

    def check(self) -> None:
        """Makes sure, if displaced, that every tensor's module was called so at least once until now.

        Raises:
            RuntimeError: If none was: the tensor is not read, or it is read past its module and was not displaced.
        """
        if self._unread and self._terms:
            raise RuntimeError(
                f"restore=streamed displaces the weights of modules that are called, and the loss called none that"
                f" holds {self.space.names[min(self._unread)]} ({len(self._unread)} tensors in all):"
                " restore=snapshot displaces all weights"
            )

    def _call(self, module: nn.Module, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        """Returns what the module's `forward` returns with displaced tensors in place of its own."""
        if not self._terms:
            return forward(*args, **kwargs)
        own, held = cast(dict[str, Any], module._parameters), self._holders[module]
        before, used, written = [own[name] for name, _ in held], self._used, []
        try:
            for name, i in held:
                if i not in self._displaced:  # else a caller of this module has displaced it
                    self._displaced[i] = self._allocate(i)
                    written.append(i)
                    self._unread.discard(i)
                    self._displace(self._displaced[i], i, _rows(module, args))
                own[name] = self._displaced[i]
            return self._lasting(forward(*args, **kwargs))
        finally:
            for (name, _), parameter in zip(held, before, strict=True):
                own[name] = parameter
            for i in written:
                del self._displaced[i]
            self._used = used

    def _displace(self, out: Tensor, i: int, rows: Tensor | None) -> None:
        """Writes tensor i, displaced, or its rows with these indices, (r,), into `out`."""
        with self.space.timed(passes=0):
            theta = self.space.tensors[i]
            if rows is None:
                add_(out, theta, i, self._terms)
            else:
                add_rows_(out, theta, i, self._terms, rows)

    def _allocate(self, i: int) -> Tensor:
        """Returns a tensor like tensor i behind what is used of the buffer."""
        like, begin = self.space.tensors[i], self._used
        self._used += self._sizes[i]
        if self._used > self.bytes:  # modules that call one another without containing one another
            return torch.empty_like(like)
        part = self._buffer[begin : begin + like.numel() * like.element_size()]
        return part.view(like.dtype).as_strided(like.shape, like.stride())

    def _lasting(self, output: Any) -> Any:
        """Returns a module's output, as a copy where it is a view of the displaced weights."""
        if type(output) in (tuple, list):
            return type(output)(self._lasting(part) for part in output)
        if isinstance(output, Tensor):
            begin = self._buffer.data_ptr()
            if output.device == self._buffer.device and 0 <= output.data_ptr() - begin < self.bytes:
                return output.clone()
        return output


def buffer_bytes(model: nn.Module, tensors: Sequence[Tensor], names: Sequence[str]) -> int:
    """Returns the buffer's size: the most that modules hold together that are called inside one another."""
    return _nested_bytes(model, _holders(model, tensors, names), _sizes(tensors))


def _nested_bytes(
    module: nn.Module, holders: Holders, sizes: Sequence[int], outer: frozenset[int] = frozenset()
) -> int:
    """Returns the bytes that `module` and its modules use at most, inside modules that hold `outer`."""
    own = {i for _, i in holders.get(module, [])} - outer
    inner = (_nested_bytes(child, holders, sizes, outer | own) for child in module.children())
    return sum(sizes[i] for i in own) + max(inner, default=0)


def _sizes(tensors: Sequence[Tensor]) -> list[int]:
    return [-(-t.numel() * t.element_size() // ALIGNMENT) * ALIGNMENT for t in tensors]


def _holders(model: nn.Module, tensors: Sequence[Tensor], names: Sequence[str]) -> Holders:
    """Returns the modules that hold tensors.

    Raises:
        ValueError: If no module holds a tensor, or one holds it in another shape or layout.
    """
    index = {storage_key(t): i for i, t in enumerate(tensors)}
    held: Holders = {}
    for prefix, module in model.named_modules():
        for name, p in module.named_parameters(recurse=False, remove_duplicate=False):
            if (i := index.get(storage_key(p))) is None:
                continue
            held.setdefault(module, []).append((name, i))
            like = tensors[i]
            if (p.shape, p.stride()) != (like.shape, like.stride()) or not _dense(like):
                raise ValueError(f"restore=streamed: {prefix}.{name} is a view of another weight")
    if missing := set(range(len(tensors))) - {i for of in held.values() for _, i in of}:
        raise ValueError(f"restore=streamed: no module of the model holds {names[min(missing)]}")
    return held


def _dense(t: Tensor) -> bool:
    """Whether the tensor's values lie without gaps in memory of their size."""
    return torch.empty_like(t, device="meta").stride() == t.stride()


def _rows(module: nn.Module, args: tuple[Any, ...]) -> Tensor | None:
    """Returns the rows of its weight, (r,), that an embedding reads for `args`; None stands for all."""
    if not isinstance(module, nn.Embedding) or type(module).forward is not nn.Embedding.forward:
        return None
    if not args or module.max_norm is not None or args[0].numel() >= module.num_embeddings:
        return None
    rows: Tensor = args[0].reshape(-1).long()
    return rows
