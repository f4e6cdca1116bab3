"""The frozen first blocks of one list, whose `forward` is replaced during a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from zo.weights.prefix.arguments import Arguments, HoldsTensorsError, Memo, is_object
from zo.weights.prefix.passes import (
    Forward,
    Given,
    Partial,
    Pass,
    Reached,
    Record,
    Recording,
    Serving,
)
from zo.weights.storage import storage_key

MOST = 8
"""Forward passes of one closure whose hidden states are kept."""


class PrefixError(RuntimeError):
    """The loss reads what frozen blocks leave behind beside their output."""


class BlockChain:
    """The frozen first blocks of one list.

    Args:
        path: Of the list in the model.
        blocks: The frozen ones, in order.

    Attributes:
        hits: Forward passes of this step that computed none of the blocks.
        why_not: Why the blocks are computed in every forward pass, or None.
    """

    def __init__(self, path: str, blocks: list[nn.Module]):
        self.path, self.blocks = path, blocks
        self.why_not: str | None = None
        self.useless = False
        self.hits = self.passes = 0
        self._forwards = [partial(self._call, j) for j in range(len(blocks))]
        self._plain: list[Forward] = []
        self._weights: list[Tensor] = []
        self._records: list[Record] = []
        self._half_filled: list[Any] = []
        self._pass: Pass = Pass()
        self._lent: Pass | None = None

    @property
    def shown(self) -> str:
        """The blocks, in words."""
        return f"blocks 0 to {len(self.blocks) - 1} of {self.path}"

    def is_fit(self) -> bool:
        """Returns whether the blocks may be skipped as they are now; else `why_not` says why."""
        if not self.useless:
            self.why_not = next(filter(None, map(self._hindrance, self.blocks)), None)
        return self.why_not is None

    def _hindrance(self, block: nn.Module) -> str | None:
        """Returns why a block cannot be skipped."""
        for module in block.modules():
            if module.training:
                return (
                    f"{self.path} is in training mode, where dropout may be on (call model.eval())"
                )
            if module._forward_hooks or module._forward_pre_hooks:
                return f"a block of {self.path} has a forward hook"
            if is_compiled(module):
                return f"a block of {self.path} is compiled"
        return None

    def leave(self, why: str) -> None:
        """Computes the blocks in every forward pass from now on."""
        self.why_not, self.useless = why, True

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """While the body runs, passes with the same arguments compute the blocks once; then all is forgotten."""
        if self._weights:  # by an outer call
            yield
            return
        self.hits = self.passes = 0
        tensors = (t for block in self.blocks for t in (*block.parameters(), *block.buffers()))
        self._weights = [t for t in tensors if not isinstance(storage_key(t), int)]
        try:
            with self._replaced():
                yield
        finally:
            self._weights, self._records, self._half_filled = [], [], []
            self._pass = Pass()
            if self.passes > 1 and not self.hits and not self.useless:
                why = f"what enters {self.path} is not the same in two passes of a step"
                self.leave(self.why_not or why)

    def output_of(self, run: Callable[[], object]) -> Any:
        """Returns what the last of the blocks returns while `run` computes the model; None if it is not called.

        `run` ends there.
        """
        with self._replaced(Partial(len(self.blocks) - 1)):
            try:
                run()
            except Reached as reached:
                return reached.output
        return None

    def returning(self, output: Any) -> AbstractContextManager[None]:
        """While the body runs, each of the blocks returns `output`."""
        return self._replaced(Given(output))

    @contextmanager
    def _replaced(self, lent: Pass | None = None) -> Iterator[None]:
        """While the body runs, the blocks' `forward` is replaced; `lent` decides what the passes do."""
        outer, self._lent = self._lent, lent
        own: list[Any] = []
        try:
            if not self._plain:
                own = [block.__dict__.get("forward") for block in self.blocks]
                self._plain = [block.forward for block in self.blocks]
                for block, forward in zip(self.blocks, self._forwards, strict=True):
                    block.__dict__["forward"] = forward
            yield
        finally:
            self._lent = outer
            for block, plain in zip(self.blocks, own, strict=False):
                block.__dict__.pop("forward", None)
                if plain is not None:
                    block.__dict__["forward"] = plain
            if own:
                self._plain = []

    def _call(self, j: int, *args: Any, **kwargs: Any) -> Any:
        """Returns what block `j` returns, or what is kept."""
        forward = self._plain[j]
        if self._lent is not None:
            return self._lent.call(j, forward, args, kwargs)
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or _is_capturing():
            return forward(*args, **kwargs)
        if j == 0:
            self.passes += 1
            self._pass = self._begin(args, kwargs)
        return self._pass.call(j, forward, args, kwargs)

    def _begin(self, args: Any, kwargs: Any) -> Pass:
        """Returns what the pass that calls block 0 with these arguments does.

        Raises:
            PrefixError: If an argument would have been filled by blocks that were skipped.
        """
        leaves, _ = tree_flatten((args, kwargs))
        if half := [x for x in leaves if any(x is y for y in self._half_filled)]:
            name = type(half[0]).__name__
            raise PrefixError(f"the blocks of {self.path} fill a {name} that the loss reads again")
        if self.useless:
            return Pass()
        try:
            found = Arguments.of(args, kwargs)
        except HoldsTensorsError as error:
            self.why_not = f"{self.path} takes a {error}, which holds tensors"
            return Pass()
        weights = [(t.data_ptr(), -1 if t.is_inference() else t._version) for t in self._weights]
        for record in self._records:
            memo: Memo = {}
            if record.weights == weights and found.same(record.calls[0], memo):
                self.hits += 1
                objects = [leaf for leaf in leaves if is_object(leaf)]
                self._half_filled += [objects[i] for i in record.filled]
                return Serving(record, memo, leaves)
        full = len(self._records) >= MOST
        return Pass() if full else Recording(self, Record(weights), leaves)

    def keep(self, record: Record) -> None:
        """Takes a pass for later ones."""
        self._records.append(record)


def is_compiled(module: nn.Module) -> bool:
    """Returns whether a module calls compiled code."""
    return module._compiled_call_impl is not None or hasattr(module, "_orig_mod")


def _is_capturing() -> bool:
    """Returns whether a GPU records the calls: a recording must not depend on what was kept."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
