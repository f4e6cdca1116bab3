"""Reuses the outputs of a model's frozen first blocks, which are the same at every probe.

`FrozenBlocks` finds the blocks, keeps their outputs from one forward pass of a mini-batch, and returns them in later
passes, with the same bits.

`KeptStates` keeps the input of the first trained block for every token of a run's examples. It depends only on an
example's own tokens. Each example is computed alone, in one layout, when it is first needed. So no number depends on
the order of batches, on an interruption, or on the number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from zo.lm.config import StatesError
from zo.tasks.prompts import Encoded
from zo.weights.aliasing import storage_key, unguarded
from zo.weights.offloaded import offload_of
from zo.weights.patching import replaced

Forward: TypeAlias = Callable[..., Any]


class FrozenBlocks:
    """The frozen first blocks of a model's lists of blocks that a forward pass calls before it reads θ.

    A list is an `nn.ModuleList` or `nn.Sequential` in which each block's output is the next one's input.
    """

    def __init__(self, model: nn.Module, trained: Sequence[Tensor]):
        self._trained = trained
        self._keys = {storage_key(p) for p in trained}
        self.lists: dict[str, list[nn.Module]] = {}  # path -> blocks before the first trained one
        self.called: list[str] = []  # paths of those that the forward pass of `find` called
        self._add_lists(model, "", set())

    def _add_lists(self, module: nn.Module, path: str, seen: set[nn.Module]) -> None:
        if module in seen:
            return
        seen.add(module)
        if not isinstance(module, (nn.ModuleList, nn.Sequential)):
            for name, child in module.named_children():
                self._add_lists(child, f"{path}.{name}" if path else name, seen)
            return
        trains = [self.trains(block) for block in module]
        frozen = [*module][: trains.index(True) if True in trains else None]
        if any(True for block in frozen for _ in block.parameters()):
            self.lists[path or type(module).__name__] = frozen

    def trains(self, module: nn.Module) -> bool:
        """Returns whether a module has a trained tensor."""
        return any(storage_key(p) in self._keys for p in module.parameters())

    def find(self, run: Callable[[], object]) -> None:
        """Keeps the lists that `run` calls once, before it reads a trained tensor. Raises StatesError without any."""
        fit: list[str] = []
        self.called = []

        def returned(path: str, output: Any) -> None:
            self.called.append(path)
            if not reads.found:
                fit.append(path)

        with _Reads(self._trained) as reads, self._watched(returned):
            run()
        if not self.called:
            raise StatesError(f"the loss does not call {', '.join(self.lists)}")
        if not fit:
            raise StatesError(f"the input of {self.called[0]} depends on trained weights")
        self.lists = {p: of for p, of in self.lists.items() if p in fit}
        if len(self.called) > len({*self.called}):
            raise StatesError("the loss calls a list of blocks several times")

    def outputs_of(self, run: Callable[[], object]) -> dict[str, Any]:
        """Returns the output of each list's last frozen block during `run`, which ends there."""
        outputs: dict[str, Any] = {}

        def returned(path: str, output: Any) -> None:
            outputs[path] = output
            if len(outputs) == len(self.lists):
                raise _AllReturned

        with self._watched(returned), suppress(_AllReturned):
            run()
        return outputs

    @contextmanager
    def once(self, kept: dict[str, Any]) -> Iterator[None]:
        """In the body, a forward pass of one mini-batch, reuses the outputs in `kept` and adds missing ones."""
        if kept:
            with self.returning(_copied(kept)):  # blocks may write into it
                yield
            return
        outputs: dict[str, Any] = {}
        with self._watched(lambda path, output: outputs.update({path: _copied(output)})):
            yield
        kept.update(outputs)

    def returning(self, outputs: Mapping[str, Any]) -> AbstractContextManager[None]:
        """In the body each list's frozen blocks return the given output."""
        return replaced(
            {
                block: partial(_given, outputs[path])
                for path, of in self.lists.items()
                for block in of
            }
        )

    def _watched(self, returned: Callable[[str, Any], None]) -> AbstractContextManager[None]:
        """In the body calls `returned` with the output of each list's last frozen block."""

        def watched(path: str, forward: Forward, *args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            returned(path, output)
            return output

        last = {path: of[-1] for path, of in self.lists.items()}
        return replaced({of: partial(watched, path, of.forward) for path, of in last.items()})

    def __str__(self) -> str:
        return ", ".join(f"blocks 0 to {len(of) - 1} of {path}" for path, of in self.lists.items())


def _places(tensors: Iterable[Tensor]) -> list[int]:
    """Returns where tensors are in memory."""
    return [t.untyped_storage().data_ptr() for t in tensors]


class _AllReturned(Exception):
    """Ends a forward pass after the frozen blocks."""


class _Reads(TorchDispatchMode):
    """Detects that an operation, or the call of an offloaded module, reads one of some tensors."""

    def __init__(self, tensors: Sequence[Tensor]):
        super().__init__()
        self._addresses = {*unguarded(_places, tensors)} - {0}
        self._ids, offload = {id(p) for p in tensors}, offload_of(tensors)
        self._visited: set[int] = set() if offload is None else offload.visited
        self._visited.clear()
        self._found = False

    @property
    def found(self) -> bool:
        """Whether one was read."""
        return self._found or not self._ids.isdisjoint(self._visited)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Calls the operation."""
        given = (x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor))
        self._found |= not self._addresses.isdisjoint(unguarded(_places, given))
        return func(*args, **(kwargs or {}))


def _given(output: Any, *_: Any, **__: Any) -> Any:
    return output


def _copied(outputs: Any) -> Any:
    return tree_map_only(Tensor, torch.clone, outputs)


class KeptStates:
    """Memory for the states of some splits' examples, the same objects as in batches; row 0 has zeros, for padding."""

    def __init__(self, splits: Iterable[Sequence[Encoded]], width: int, like: Tensor) -> None:
        self._examples = [example for split in splits for example in split]  # their ids stay theirs
        self._first: dict[int, int] = {}
        rows = 1
        for example in self._examples:
            self._first[id(example)] = rows
            rows += example.length
        self._there: set[int] = set()
        self._states = torch.empty(rows, width, dtype=like.dtype, device=like.device)
        self._states[0] = 0
        self.dtype = like.dtype
        self.bytes = self._states.numel() * self._states.element_size()

    def is_of(self, splits: Iterable[Sequence[Encoded]]) -> bool:
        """Returns whether these are the states of the same example objects."""
        examples = [example for split in splits for example in split]
        pairs = zip(self._examples, examples, strict=False)
        return len(examples) == len(self._examples) and all(a is b for a, b in pairs)

    def first(self, example: Encoded) -> int | None:
        """Returns the row of an example's first token; None for an example of other splits."""
        return self._first.get(id(example))

    def missing(self, examples: Iterable[Encoded]) -> list[Encoded]:
        """Returns the examples of these splits that are not yet computed."""
        known = (example for example in examples if id(example) in self._first)
        return [example for example in known if id(example) not in self._there]

    def put(self, example: Encoded, states: Tensor, places: Tensor) -> None:
        """Stores the states of an example's rows, (P, L, D).

        `places` has the row of each token here, 0 for padding, (P, L). The first token of a row counts.
        """
        taken = dict[int, int]()
        for at, place in enumerate(places.flatten().tolist()):
            if place:
                taken.setdefault(place, at)
        index = torch.tensor([[*taken], [*taken.values()]], device=states.device)
        self._states[index[0]] = states.flatten(0, 1)[index[1]]
        self._there.add(id(example))

    def of(self, places: Tensor) -> Tensor:
        """Returns the states at these rows, (P, L).  # (P, L, D)."""
        return self._states.index_select(0, places.flatten()).view(*places.shape, -1)
