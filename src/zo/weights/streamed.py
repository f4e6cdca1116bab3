"""Displaced weights for one module at a time, in a buffer as large as the largest module: θ itself stays as it is.

While a `Stream` is displaced, every module that holds trainable tensors computes with displaced copies of them, which
are written when it is called and given up when it returns, in whatever way. An embedding gets only the rows that it
looks up. Weights are displaced where they are read, in the call of a module that holds them; what reads them past
their module sees θ, and `Stream.check` finds a tensor whose modules were not called at all.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

Displace: TypeAlias = Callable[[Tensor, int, Tensor | None], None]
"""Writes tensor i, displaced, into the first argument: all of it, or the rows whose indices, (r,), come last."""

Forward: TypeAlias = Callable[..., Any]
Held: TypeAlias = list[tuple[str, int]]
"""What a module holds itself: (name in the module, index of the tensor)."""

ALIGNMENT = 64
"""Bytes: tensors in the buffer begin at multiples of it, as torch's own do."""


class Stream:
    """A model whose modules can be made to compute with displaced weights.

    Args:
        model: What computes; between `back` and `to` nothing about it is changed.
        tensors: The weights that are displaced, all on one device.
        names: Of the tensors, for messages.

    Attributes:
        bytes: Size of the buffer: the most that modules hold together that are called inside one another.

    Raises:
        ValueError: If no module holds a tensor, one holds it in another shape or layout, or devices differ.
    """

    def __init__(self, model: nn.Module, tensors: Sequence[Tensor], names: Sequence[str]):
        if len({t.device for t in tensors}) != 1:
            raise ValueError("restore=streamed: the trainable tensors are on several devices")
        self._tensors, self._names = tensors, names
        self._held = _held(model, tensors, names)
        self._sizes = [-(-t.numel() * t.element_size() // ALIGNMENT) * ALIGNMENT for t in tensors]
        self.bytes = self._nested(model, set())
        self._buffer = torch.empty(self.bytes, dtype=torch.uint8, device=tensors[0].device)
        self._top = 0  # bytes of the buffer that are taken
        self._now: dict[int, Tensor] = {}  # what they hold
        self._displace: Displace | None = None
        self._unread = set(range(len(tensors)))  # what was never displaced until now
        self._own: dict[nn.Module, Forward | None] = {}  # what `back` puts back

    def to(self, displace: Displace | None) -> None:
        """Makes the modules compute with what `displace` writes from now on, or with θ if that is None."""
        self._displace = displace
        if not self._own:
            self._own = {m: m.__dict__.get("forward") for m in self._held}
            for module in self._held:
                module.__dict__["forward"] = functools.partial(self._call, module, module.forward)

    def back(self) -> None:
        """Leaves the model as it was before the first `to`."""
        self._displace = None
        for module, forward in self._own.items():
            if forward is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = forward
        self._own = {}

    def check(self) -> None:
        """Makes sure, if displaced, that every tensor's module was called so at least once until now.

        Raises:
            RuntimeError: If none was: the tensor is not read, or it is read past its module and was not displaced.
        """
        if self._unread and self._displace is not None:
            raise RuntimeError(
                f"restore=streamed displaces the weights of modules that are called, and the loss called none that"
                f" holds {self._names[min(self._unread)]} ({len(self._unread)} tensors in all):"
                " restore=snapshot displaces all weights"
            )

    def _call(self, module: nn.Module, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        """Returns what `forward`, of `module`, returns with displaced tensors in place of its own."""
        if self._displace is None:
            return forward(*args, **kwargs)
        own, held = cast(dict[str, Any], module._parameters), self._held[module]
        before, top, written = [own[name] for name, _ in held], self._top, []
        try:
            for name, i in held:
                if i not in self._now:  # else a caller of this module holds it, too
                    self._now[i] = self._room(i)
                    written.append(i)
                    self._unread.discard(i)
                    self._displace(self._now[i], i, _rows(module, args))
                own[name] = self._now[i]
            return self._lasting(forward(*args, **kwargs))
        finally:
            for (name, _), parameter in zip(held, before, strict=True):
                own[name] = parameter
            for i in written:
                del self._now[i]
            self._top = top

    def _room(self, i: int) -> Tensor:
        """Returns room for tensor i on top of what is taken."""
        like, begin = self._tensors[i], self._top
        self._top += self._sizes[i]
        if self._top > self.bytes:  # modules that call one another without containing one another
            return torch.empty_like(like)
        room = self._buffer[begin : begin + like.numel() * like.element_size()]
        return room.view(like.dtype).as_strided(like.shape, like.stride())

    def _lasting(self, output: Any) -> Any:
        """Returns a module's output, as a copy where it is a view of the weights, which are about to go."""
        if type(output) in (tuple, list):
            return type(output)(self._lasting(part) for part in output)
        if isinstance(output, Tensor):
            begin = self._buffer.data_ptr()
            if output.device == self._buffer.device and 0 <= output.data_ptr() - begin < self.bytes:
                return output.clone()
        return output

    def _nested(self, module: nn.Module, above: set[int]) -> int:
        """Returns the bytes that `module` and its modules take at most, inside modules that hold `above`."""
        mine = {i for _, i in self._held.get(module, [])} - above
        inside = (self._nested(child, above | mine) for child in module.children())
        return sum(self._sizes[i] for i in mine) + max(inside, default=0)


def _held(
    model: nn.Module, tensors: Sequence[Tensor], names: Sequence[str]
) -> dict[nn.Module, Held]:
    """Returns what the modules that hold tensors hold themselves.

    Raises:
        ValueError: If no module holds a tensor, or one holds it in another shape or layout.
    """
    index = {_identity(t): i for i, t in enumerate(tensors)}
    held: dict[nn.Module, Held] = {}
    for prefix, module in model.named_modules():
        for name, p in module.named_parameters(recurse=False, remove_duplicate=False):
            if (i := index.get(_identity(p))) is None:
                continue
            held.setdefault(module, []).append((name, i))
            like = tensors[i]
            if (p.shape, p.stride()) != (like.shape, like.stride()) or not _dense(like):
                raise ValueError(f"restore=streamed: {prefix}.{name} is a view of another weight")
    if missing := set(range(len(tensors))) - {i for of in held.values() for _, i in of}:
        raise ValueError(f"restore=streamed: no module of the model holds {names[min(missing)]}")
    return held


def _identity(t: Tensor) -> int:
    """Returns what tensors of one storage share; without a storage, as on the meta device, each is its own."""
    return t.data_ptr() or id(t)


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
