"""restore=streamed: each module computes with a displaced copy of its own weights, and θ never moves.

During a probe, a module that holds trainable tensors writes displaced copies of them into a buffer when it is called,
computes with them, and releases them when it returns or raises. An embedding displaces only the rows that it looks up.
The buffer is as large as the largest module. The probe is exact, and it measures what `snapshot` measures, bit for bit.

What is read outside of the call of its module is not displaced. During a probe, θ's parameters therefore refuse to be
read (`_Unreadable`), and a module must not leave a view of its displaced weights behind. Aliases of a weight,
such as its `.data` or a view made earlier, escape this check.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from zo.weights.directions import Terms
from zo.weights.restore.base import RestoreError, RestorePolicy
from zo.weights.scratch import Scratch, aligned, without_views
from zo.weights.storage import storage_key
from zo.weights.updates import add_, add_rows_

if TYPE_CHECKING:
    from zo.weights.space import ParameterSpace

Forward: TypeAlias = Callable[..., Any]
Holders: TypeAlias = dict[nn.Module, list[tuple[nn.Module, str, int]]]
"""Modules and the tensors that they compute with: (itself or its dictionary of parameters, name in it, index)."""

CONTAINERS = (nn.ParameterDict, nn.ParameterList)
"""Hold tensors for the module that they are in, and are not called themselves."""

VALUES = ("item", "tolist", "numpy", "__bool__", "__float__", "__int__")
"""Functions of a tensor that return its values as other things than tensors."""


class _Unreadable(nn.Parameter):
    """A parameter of θ during a probe: has a shape and a dtype, but no operation may read its values."""

    @classmethod
    def __torch_function__(
        cls, function: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Refuses what returns tensors or values."""
        with torch._C.DisableTorchFunctionSubclass():
            found = function(*args, **(kwargs or {}))
        parts = found if isinstance(found, (tuple, list)) else (found,)
        if any(isinstance(part, Tensor) for part in parts) or function.__name__ in VALUES:
            given = (*args, *(kwargs or {}).values())
            names = [t.name_in_model for t in given if isinstance(t, cls)]
            name = ", ".join(names) or "a weight"
            what = f"{name} is read outside of the call of its module, where it is not displaced"
            raise RestoreError(Streamed.name, what, "snapshot")
        return found

    name_in_model: str


class Streamed(RestorePolicy):
    """Replaces the `forward` of the modules that hold θ's tensors while a probe is under way.

    Attributes:
        bytes: Size of the buffers.

    Raises:
        ValueError: If the model is missing, no module holds a tensor, or one holds it in another shape or
            layout.
    """

    name = "streamed"

    def __init__(self, space: ParameterSpace, model: nn.Module | None):
        super().__init__(space, model)
        if model is None:
            raise ValueError("restore=streamed: the tensors' model is needed")
        self._holders = _holders(model, space.parameters, space.names)
        self._names = {module: name for name, module in model.named_modules()}
        self._sizes = [aligned(t) for t in space.tensors]
        self._buffers: dict[torch.device, _Buffer] = {}
        for device in {t.device for t in space.tensors}:
            sizes = zip(self._sizes, space.tensors, strict=True)
            on = [size if t.device == device else 0 for size, t in sizes]
            self._buffers[device] = _Buffer(_nested_bytes(model, self._holders, on), device)
        self.bytes = sum(len(buffer.memory) for buffer in self._buffers.values())
        self._displaced: dict[int, Tensor] = {}  # by tensor index, while a module computes with it
        self._terms: Terms = ()
        self._parameters = {
            m._parameters[n]: space.names[i] for of in self._holders.values() for m, n, i in of
        }
        self._forwards: dict[nn.Module, Forward | None] = {}  # what `restore` puts back
        self._own: list[tuple[Any, str, Any]] = []  # and where which parameter belongs

    def begin(self) -> None:
        """Puts the model back if a restoration was broken off."""
        if self._forwards:
            self.restore()

    def to(self, terms: Terms) -> None:
        """Makes the modules compute with θ + Σ c_j z_j from now on."""
        self.space.passes += bool(terms)
        self._terms = terms
        if not self._forwards:
            self._forwards = {m: m.__dict__.get("forward") for m in self._holders}
            at = [(m._parameters, n) for of in self._holders.values() for m, n, _ in of]
            self._own = [(held, name, held[name]) for held, name in at]
            call = self._call
            if "torch._dynamo" in sys.modules:  # a compiled loss calls it, and leaves it uncompiled
                call = torch.compiler.disable(call)
            for module in self._holders:
                module.__dict__["forward"] = functools.partial(call, module, module.forward)
        self._make_readable(not terms)

    def restore(self) -> None:
        """Leaves the model as it was before the first `to`, also where a call of a module was interrupted."""
        self._terms = ()
        for held, name, parameter in self._own:
            held[name] = parameter
        self._displaced.clear()
        for buffer in self._buffers.values():
            buffer.used = 0
        self._make_readable(True)
        for module, forward in self._forwards.items():
            if forward is None:
                module.__dict__.pop("forward", None)  # gone where this was interrupted before
            else:
                module.__dict__["forward"] = forward
        self._forwards, self._own = {}, []

    def _make_readable(self, readable: bool) -> None:
        """Lets everybody read θ's parameters, or nobody but the modules that displace them."""
        for p, name in self._parameters.items():
            if type(p) is nn.Parameter and not readable:
                p.__dict__["name_in_model"] = name
                p.__class__ = _Unreadable
            elif type(p) is _Unreadable and readable:
                p.__class__ = nn.Parameter  # type: ignore[assignment]
                p.__dict__.pop("name_in_model", None)

    def _call(self, module: nn.Module, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        """Returns what the module's `forward` returns with displaced tensors in place of its own."""
        if not self._terms:
            return forward(*args, **kwargs)
        held = [(cast(dict[str, Any], m._parameters), n, i) for m, n, i in self._holders[module]]
        before, written = [own[name] for own, name, _ in held], []
        marks = {buffer: (buffer.used, buffer.views()) for buffer in self._buffers.values()}
        try:
            for own, name, i in held:
                if i not in self._displaced:  # else a caller of this module has displaced it
                    tensor = self.space.tensors[i]
                    buffer = self._buffers[tensor.device]
                    self._displaced[i], out = buffer.take(tensor, self._sizes[i])
                    written.append(i)
                    self._displace(out, i, _rows(module, args))
                own[name] = self._displaced[i]
            output = forward(*args, **kwargs)
        finally:
            for (own, name, _), parameter in zip(held, before, strict=True):
                own[name] = parameter
            for i in written:
                del self._displaced[i]
            for buffer, (used, _) in marks.items():
                buffer.used = used
        output, kept = without_views(output, {b: views for b, (_, views) in marks.items()})
        if kept:
            name = f"{self._names[module] or 'the model'} ({type(module).__name__})"
            what = f"{name} keeps a view of its weights after its call, or returns one where it cannot be found"
            raise RestoreError(self.name, what, "snapshot")
        return output

    def _displace(self, out: Tensor, i: int, rows: Tensor | None) -> None:
        """Writes tensor i, displaced, or its rows with these indices, (r,), into `out`."""
        with self.space.timed(passes=0):
            theta = self.space.tensors[i]
            if rows is None:
                add_(out, theta, i, self._terms)
            else:
                add_rows_(out, theta, i, self._terms, rows)


class _Buffer(Scratch):
    """Memory for displaced weights on one device, used as a stack.

    Attributes:
        used: Bytes that are taken.
    """

    used = 0

    def take(self, like: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Returns a tensor like another one behind what is used, as parts of `memory` and of `written`."""
        begin = self.used
        self.used += size
        if self.used > len(self.memory):  # modules call one another without containing one another
            alone = torch.empty_like(like)
            return alone, alone
        return self.part(like, begin)


def _nested_bytes(
    module: nn.Module, holders: Holders, sizes: Sequence[int], outer: frozenset[int] = frozenset()
) -> int:
    """Returns the bytes that `module` and its modules use at most, inside modules that hold `outer`."""
    own = {i for *_, i in holders.get(module, [])} - outer
    inner = (_nested_bytes(child, holders, sizes, outer | own) for child in module.children())
    return sum(sizes[i] for i in own) + max(inner, default=0)


def _holders(model: nn.Module, tensors: Sequence[Tensor], names: Sequence[str]) -> Holders:
    """Returns the modules that hold tensors.

    Raises:
        ValueError: If no module holds a tensor, or one holds it in another shape or layout.
    """
    index = {storage_key(t): i for i, t in enumerate(tensors)}
    held: Holders = {}
    callers = {c: m for m in model.modules() for c in m.children() if isinstance(c, CONTAINERS)}
    for prefix, module in model.named_modules():
        for name, p in module.named_parameters(recurse=False, remove_duplicate=False):
            if (i := index.get(storage_key(p))) is None:
                continue
            held.setdefault(callers.get(module, module), []).append((module, name, i))
            like = tensors[i]
            if (p.shape, p.stride()) != (like.shape, like.stride()) or not _dense(like):
                raise ValueError(f"restore=streamed: {prefix}.{name} is a view of another weight")
    if missing := set(range(len(tensors))) - {i for of in held.values() for *_, i in of}:
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
    rows: Tensor = args[0].reshape(-1).long().to(module.weight.device)
    return rows
