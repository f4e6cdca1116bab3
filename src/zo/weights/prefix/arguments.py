"""What a block of a model was called with, and whether two calls are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten

Memo: TypeAlias = dict[tuple[int, int], bool]
"""Comparisons of a forward pass: ids of two tensors, which both live as long -> whether they are equal."""

DEPTH = 4
"""How deep an object is looked into."""

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


@dataclass
class Arguments:
    """What a block was called with.

    Attributes:
        leaves: Tensors, numbers and objects, in order; None in place of those with a source.
        spec: The structure that they stand in.
        sources: Of each leaf its place among what this pass has had before, or None: what the last block returned, and
            the objects that block 0 was called with.
        states: Of each leaf that is an object without a source what it holds, see `state_of`.
    """

    leaves: list[Any]
    spec: TreeSpec
    sources: list[int | None]
    states: list[Any]

    @classmethod
    def of(cls, args: Any, kwargs: Any, before: Sequence[Any] = ()) -> Arguments:
        """Returns the arguments of a call.

        Raises:
            HoldsTensorsError: If an object among them, of which nothing is known, holds tensors.
        """
        leaves, spec = tree_flatten((args, kwargs))
        sources = [place(leaf, before) for leaf in leaves]
        kept = [x if k is None else None for x, k in zip(leaves, sources, strict=True)]
        return cls(kept, spec, sources, [state_of(x) if is_object(x) else None for x in kept])

    def same(self, other: Arguments, memo: Memo) -> bool:
        """Returns whether both are equal by value."""
        if self.spec != other.spec or self.sources != other.sources:
            return False
        pairs = zip(self.leaves, other.leaves, self.states, other.states, strict=True)
        return all(_same(a, b, s, t, memo) for a, b, s, t in pairs)


class HoldsTensorsError(Exception):
    """An argument is an object that holds tensors, which are not compared."""


def is_object(leaf: Any) -> bool:
    """Returns whether an argument is neither a tensor nor a plain value."""
    return not isinstance(leaf, (Tensor, *PLAIN))


def place(leaf: Any, before: Sequence[Any]) -> int | None:
    """Returns the place of a tensor or an object among others, or None."""
    if isinstance(leaf, PLAIN):
        return None
    return next((k for k, x in enumerate(before) if x is leaf), None)


def _same(a: Any, b: Any, of_a: Any, of_b: Any, memo: Memo) -> bool:
    """Returns whether two leaves are equal by value, or as objects of one kind in one state."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        key = (id(a), id(b))
        if key not in memo:
            alike = (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
            memo[key] = alike and torch.equal(a, b)
        return memo[key]
    if type(a) is not type(b):
        return False
    return bool(of_a == of_b if is_object(a) else a == b)


def changed(value: Any, state: Any) -> bool:
    """Returns whether an object is in another state by now."""
    try:
        return bool(state_of(value) != state)
    except HoldsTensorsError:
        return True


def state_of(value: Any, depth: int = DEPTH) -> Any:
    """Returns kind and contents of an object, to be compared with those of another.

    Raises:
        HoldsTensorsError: If it holds tensors of more than one number.
    """
    if isinstance(value, Tensor):
        if value.numel() > 1:
            raise HoldsTensorsError
        return value.dtype, value.tolist()
    if isinstance(value, (*PLAIN, type, nn.Module)) or callable(value):
        return value
    inside: Any = getattr(value, "__dict__", None)
    if isinstance(value, (list, tuple, set, frozenset)):
        inside = dict(enumerate(value))
    elif isinstance(value, dict):
        inside = value
    if inside is None or depth == 0:
        return type(value)
    try:
        return type(value), [(str(key), state_of(x, depth - 1)) for key, x in inside.items()]
    except HoldsTensorsError:
        raise HoldsTensorsError(type(value).__name__) from None
