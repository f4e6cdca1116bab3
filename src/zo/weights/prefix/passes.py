"""One forward pass through the frozen blocks of a list: computed, recorded, or left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from zo.weights.prefix.arguments import (
    Arguments,
    HoldsTensorsError,
    Memo,
    changed,
    is_object,
    place,
    state_of,
)

if TYPE_CHECKING:
    from zo.weights.prefix.chain import BlockChain

Forward: TypeAlias = Callable[..., Any]


@dataclass
class Record:
    """One forward pass through the frozen blocks.

    Attributes:
        weights: Addresses and versions of the frozen weights.
        calls: The arguments of each block.
        filled: Places of the objects among block 0's arguments that the blocks change.
        leaves: What the last block returned, copied.
        spec: The structure that it stands in.
    """

    weights: list[tuple[int, int]]
    calls: list[Arguments] = field(default_factory=list)
    filled: list[int] = field(default_factory=list)
    leaves: list[Any] = field(default_factory=list)
    spec: TreeSpec | None = None


class Pass:
    """A forward pass that computes the blocks."""

    def call(self, j: int, forward: Forward, args: Any, kwargs: Any) -> Any:
        """Returns what block `j` returns."""
        return forward(*args, **kwargs)


class Reached(Exception):
    """Ends a forward pass behind the last frozen block.

    Attributes:
        output: What the block returned.
    """

    def __init__(self, output: Any):
        super().__init__()
        self.output = output


class Partial(Pass):
    """A forward pass that ends behind block `last`."""

    def __init__(self, last: int):
        self._last = last

    def call(self, j: int, forward: Forward, args: Any, kwargs: Any) -> Any:
        """Returns what block `j` returns.

        Raises:
            Reached: By the last block.
        """
        output = forward(*args, **kwargs)
        if j == self._last:
            raise Reached(output)
        return output


class Given(Pass):
    """A forward pass in which every frozen block returns what is given."""

    def __init__(self, output: Any):
        self._output = output

    def call(self, j: int, forward: Forward, args: Any, kwargs: Any) -> Any:
        """Returns what is given."""
        return self._output


class Recording(Pass):
    """A forward pass that computes the blocks, and keeps what they were called with and what the last returns."""

    def __init__(self, chain: BlockChain, record: Record, first: Sequence[Any]):
        self._chain, self._record = chain, record
        self._objects = [leaf for leaf in first if is_object(leaf)]
        self._states = [state_of(x) for x in self._objects]
        self._returned: list[Any] = []
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        self._failed = False

    def call(self, j: int, forward: Forward, args: Any, kwargs: Any) -> Any:
        """Returns what block `j` returns."""
        if self._failed:
            return forward(*args, **kwargs)
        before, record = tree_flatten((args, kwargs))[0], self._record
        try:
            arguments = Arguments.of(args, kwargs, [*self._returned, *self._objects] if j else ())
        except HoldsTensorsError as error:
            return self._failing(f"take a {error}, which holds tensors", forward(*args, **kwargs))
        taken = any(k is not None and k < len(self._returned) for k in arguments.sources)
        in_order = j == len(record.calls) and (j == 0 or taken)
        arguments.leaves = [self._copy(x) for x in arguments.leaves]
        output = forward(*args, **kwargs)
        after, spec = tree_flatten((args, kwargs))
        if spec != arguments.spec or any(x is not y for x, y in zip(before, after, strict=True)):
            return self._failing("share state beyond their arguments", output)
        record.calls.append(arguments)
        self._returned, spec = tree_flatten(output)
        if not in_order or (record.spec is not None and record.spec != spec):
            return self._failing("do not hand their output from one to the next", output)
        record.spec = spec
        if j == len(self._chain.blocks) - 1:
            record.leaves = [x.clone() if isinstance(x, Tensor) else x for x in self._returned]
            pairs = zip(self._objects, self._states, strict=True)
            record.filled = [i for i, (x, state) in enumerate(pairs) if changed(x, state)]
            self._chain.keep(record)
        return output

    def _copy(self, leaf: Any) -> Any:
        """Returns a tensor's copy, the same one at every call with the tensor: a block may write into it."""
        if not isinstance(leaf, Tensor):
            return leaf
        return self._copies.setdefault(id(leaf), (leaf, leaf.clone()))[1]

    def _failing(self, why: str, output: Any) -> Any:
        self._failed = True
        self._chain.leave(f"blocks of {self._chain.path} {why}")
        return output


class Serving(Pass):
    """A forward pass in which the blocks return what was kept, as long as they are called as in the record."""

    def __init__(self, record: Record, memo: Memo, first: Sequence[Any]):
        self._record, self._memo = record, memo
        self._kept = [x.clone() if isinstance(x, Tensor) else x for x in record.leaves]
        self._objects = [leaf for leaf in first if is_object(leaf)]
        self._skipped: list[tuple[Forward, list[Any], TreeSpec]] = []
        self._serves = True

    def call(self, j: int, forward: Forward, args: Any, kwargs: Any) -> Any:
        """Returns what was kept; where block `j` is called otherwise, computes the skipped blocks after all."""
        if not self._serves:
            return forward(*args, **kwargs)
        leaves, spec = tree_flatten((args, kwargs))
        if j == len(self._skipped) and (j == 0 or self._matches(j, args, kwargs)):
            self._skipped.append((forward, leaves, spec))
            assert self._record.spec is not None
            return tree_unflatten(self._kept, self._record.spec)
        self._serves = False
        returned: list[Any] = []
        for skipped, own, structure in (*self._skipped, (forward, leaves, spec)):
            places = [place(leaf, self._kept) for leaf in own]
            pairs = zip(own, places, strict=True)
            real = [leaf if k is None else returned[k] for leaf, k in pairs]
            again, named = tree_unflatten(real, structure)
            output = skipped(*again, **named)
            returned, _ = tree_flatten(output)
        return output

    def _matches(self, j: int, args: Any, kwargs: Any) -> bool:
        try:
            found = Arguments.of(args, kwargs, [*self._kept, *self._objects])
        except HoldsTensorsError:
            return False
        return found.same(self._record.calls[j], self._memo)
