"""Which tensors share memory, and which can be updated in place."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from zo.weights.sharded import part_of

VIEW = "is a view of another weight, or of a larger memory"
"""What is said of a tensor that a policy cannot take for the trained one."""

Result = TypeVar("Result")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Of tensors that can be updated in place."""


class FormerMemory:
    """Memory that a tensor leaves, which others may keep and read: views of it, its `data`.

    Args:
        t: The tensor before it leaves.
    """

    def __init__(self, t: Tensor):
        self._storage, self._dtype = StorageWeakRef(t.untyped_storage()), t.dtype
        self._view = t.storage_offset(), t.shape, t.stride()

    def tensor(self) -> Tensor | None:
        """Returns the tensor in its former memory, or None if nothing keeps that."""
        found: Any = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        if found is None:
            return None
        return torch.empty(0, dtype=self._dtype, device=found.device).set_(found, *self._view)


def unguarded(function: Callable[..., Result], *args: Any) -> Result:
    """Returns what a function returns while no tensor calls its class back, which may take it for a reader."""
    if torch.compiler.is_compiling():  # which follows no calls of C
        return function(*args)
    found: Result = torch._C._disabled_torch_function_impl(function, (), args, {})
    return found


def storage_key(t: Tensor) -> Hashable:
    """Returns a key that is equal for tensors of the same memory.

    A tensor without memory of its own (`data_ptr()` is 0: DTensors, quantised and meta tensors) has its id as key.
    """
    return unguarded(_key, t)


def _key(t: Tensor) -> Hashable:
    return (t.device, t.data_ptr()) if _has_memory(t) else id(t)


def is_alias(t: Tensor, other: Tensor) -> bool:
    """Returns whether a tensor is another one under another name."""
    same = (t.shape, t.stride()) == (other.shape, other.stride())
    return same and (storage_key(t) == storage_key(other) or not t.numel())


def distinct(named: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Returns the tensors without those that share their memory with an earlier one (tied weights).

    Raises:
        ValueError: If a tensor cannot be moved in place; names it.
    """
    found: dict[Hashable, tuple[str, Tensor]] = {}
    for name, given in named:
        try:
            t, _ = part_of(given)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if (why := _immovable(t)) is not None:
            advice = "set requires_grad=False to leave it as it is"
            raise ValueError(f"{name}: {why} and cannot be moved in place; {advice}")
        key = storage_key(t) if t.numel() else id(given)  # empty parts begin at one address
        first, same = found.setdefault(key, (name, given))
        if same.numel() != given.numel():
            raise ValueError(f"{name}: begins in memory where {first} does, with another size")
        if first != name and not (is_alias(t, part_of(same)[0]) or is_dense(t)):
            raise ValueError(f"{name}: is another view of the memory of {first}")
    _check_overlaps([(name, part_of(t)[0]) for name, t in found.values()])
    return list(found.values())


def is_dense(t: Tensor) -> bool:
    """Returns whether the tensor's values lie without gaps in memory of their size."""
    return torch.empty_like(t, device="meta").stride() == t.stride()


def _check_overlaps(named: Iterable[tuple[str, Tensor]]) -> None:
    """Raises ValueError if a value is in two tensors that begin at different addresses."""
    ranges = [(str(t.device), t.data_ptr(), _end(t), name, t) for name, t in named if t.numel()]
    ranges.sort(key=lambda of: of[:2])
    near: list[Any] = []  # that reach beyond the start of the next one
    for of in ranges:
        device, start, end, name, t = of
        near = [other for other in near if other[0] == device and other[2] > start]
        for _, begin, stop, first, other in near:
            low, high = start - begin, min(stop, end) - begin
            if _touched(other, 0)[low:high].logical_and(_touched(t, low)[low:high]).any():
                raise ValueError(f"{name}: shares a part of its memory with {first}")
        near.append(of)


def _end(t: Tensor) -> int:
    """Returns the address behind a tensor's last value."""
    last = sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr() + (last + 1) * t.element_size()


def _touched(t: Tensor, begin: int) -> Tensor:
    """Returns which bytes behind an address the tensor's values take; `begin` bytes behind it the tensor begins."""
    marks = torch.zeros(begin + _end(t) - t.data_ptr(), dtype=torch.bool)
    steps = [step * t.element_size() for step in t.stride()]
    marks.as_strided((*t.shape, t.element_size()), (*steps, 1), begin).fill_(True)
    return marks


def _immovable(t: Tensor) -> str | None:
    """Returns why a tensor cannot be moved in place, or None."""
    if t.dtype not in DTYPES:
        return f"has the dtype {t.dtype}"
    if t.numel() and not _has_memory(t):
        kind = "meta tensor" if t.is_meta else type(t.detach()).__name__
        return f"is a {kind} without memory of its own"
    if any(n > 1 and step == 0 for n, step in zip(t.shape, t.stride(), strict=True)):
        return "is expanded: several of its values share memory"
    return None


def _has_memory(t: Tensor) -> bool:
    if t.layout != torch.strided or t.is_meta or is_traceable_wrapper_subclass(t):
        return False  # some of these raise at data_ptr()
    return t.untyped_storage().data_ptr() != 0
