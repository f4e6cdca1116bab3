"""Frozen blocks before the first one that trains: computed once per mini-batch and used by all probes of a step.

While a step is under way, the `forward` of these blocks is replaced. In the first forward pass they compute, and what
the last of them returns is kept. In a later pass whose arguments are the same, each of them returns what was kept: what
enters the first block that trains has the same bits as if it were computed again. The model's own code stays around
the blocks, so no signature needs to be known.

"The same" is compared, not assumed: every argument of every block by value, and the frozen weights by address and
version. So another batch, another mask or a trained embedding is noticed, and the blocks compute.

What a comparison of arguments cannot show is shown by a trial (`FrozenPrefix.prove`): a loss that is measured twice at
the same weights, with and without what was kept, must be the same number. A loss that reads what single blocks return,
or a cache of keys and values that they fill, is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zo.weights.offload.parameter import offload_of
from zo.weights.prefix.chain import BlockChain, PrefixError, is_compiled
from zo.weights.storage import storage_key

__all__ = ["BlockChain", "FrozenPrefix", "PrefixError"]


class FrozenPrefix:
    """The frozen first blocks of a model's lists of blocks.

    A list is an `nn.ModuleList` or `nn.Sequential` whose blocks hand their output to the next one.

    Args:
        model: Computes the loss.
        trained: The tensors that move.

    Attributes:
        why_not: Why nothing is reused although blocks are frozen, one sentence without a stop; None if it is.
    """

    def __init__(self, model: nn.Module, trained: Sequence[Tensor]):
        self._model = model
        self._parameters = trained
        self.find_trained()
        self._known: dict[str, BlockChain] = {}
        self._tried = self._proved = False
        self.why_not: str | None = None

    def find_trained(self) -> None:
        """Takes note of where the tensors that move are: offloaded ones move into a copy before the first step."""
        self._trained = {storage_key(p) for p in self._parameters}

    def chains(self) -> list[BlockChain]:
        """Returns the lists of blocks that begin with frozen ones, as the model is now."""
        found: list[tuple[str, list[nn.Module]]] = []
        lists, seen = [("", self._model)], set[nn.Module]()
        while lists:
            path, module = lists.pop()
            if module in seen:
                continue
            seen.add(module)
            if isinstance(module, nn.DataParallel) or is_compiled(module):
                continue  # copies and compiled code do not see that a forward is replaced
            if not isinstance(module, (nn.ModuleList, nn.Sequential)):
                lists += [(f"{path}.{n}" if path else n, m) for n, m in module.named_children()]
            elif frozen := self._frozen(module):
                found.append((path, frozen))
        for path, blocks in found:
            known = self._known.get(path)
            if known is None or known.blocks != blocks:
                self._known[path] = BlockChain(path or type(self._model).__name__, blocks)
        return [self._known[path] for path, _ in found]

    def _frozen(self, blocks: nn.ModuleList | nn.Sequential) -> list[nn.Module]:
        """Returns the blocks before the first one that trains, none where they have no weights."""
        found: list[nn.Module] = []
        for block in blocks:
            if self.trains(block):
                break
            found.append(block)
        return found if any(True for block in found for _ in block.parameters()) else []

    def leave(self, why: str) -> None:
        """Reuses nothing from now on."""
        self.why_not = why

    @property
    def reuses(self) -> bool:
        """Whether a trial has shown that frozen blocks can be left out."""
        return self._proved and self.why_not is None

    @contextmanager
    def reusing(self) -> Iterator[None]:
        """While the body runs, forward passes with the same arguments compute frozen blocks once."""
        with self._installed() if self.reuses else nullcontext():
            yield

    @contextmanager
    def _installed(self) -> Iterator[list[BlockChain]]:
        fit = [chain for chain in self.chains() if chain.is_fit()]
        with ExitStack() as stack:
            for chain in fit:
                stack.enter_context(chain.keeping())
            yield fit

    def prove(self, loss: Callable[[], float]) -> tuple[float, float]:
        """Measures twice at the same weights, the second time with what the first has kept; both must be equal.

        Args:
            loss: Of any mini-batch.

        Returns:
            Both losses; where nothing can be reused, both with all blocks computed.
        """
        if self.why_not is not None:
            return loss(), loss()
        self._tried = True
        try:
            with self._installed() as chains:
                first, second = loss(), loss()
                hits = sum(chain.hits for chain in chains)
        except PrefixError as error:
            self.leave(str(error))
            return loss(), loss()
        if hits and first != second and math.isfinite(first):
            self.leave(
                f"the loss is {second} with the kept output of {chains[0].path} and {first} without"
            )
            second = loss()
        self._proved = self._proved or (hits > 0 and first == second)
        return first, second

    def trains(self, module: nn.Module) -> bool:
        """Returns whether a module holds a tensor that moves."""
        return any(storage_key(p) in self._trained for p in module.parameters())

    def is_read_by(self, run: Callable[[], object]) -> bool:
        """Returns whether `run` computes with a tensor that moves."""
        addresses = {p.untyped_storage().data_ptr() for p in self._parameters}
        offload = offload_of(self._parameters)
        visited: set[int] = set() if offload is None else offload.visited
        visited.clear()
        with _Reads(addresses - {0}) as reads:
            run()
        return bool(reads.found) or any(id(p) in visited for p in self._parameters)

    def describe(self) -> str:
        """Returns what is computed once per mini-batch, or why nothing is; empty where no block is frozen."""
        chains = self.chains()
        if not chains:
            return ""
        fit = [chain.shown for chain in chains if chain.is_fit()]
        why = self.why_not
        if why is None and not fit:
            why = next(chain.why_not for chain in chains)
        elif why is None and not self._proved:
            why = "the loss does not call them" if self._tried else "no step was tried"
        if why is not None:
            return f"all blocks are computed for every probe: {why}"
        return f"computed once per mini-batch: {', '.join(fit)}"


class _Reads(TorchDispatchMode):
    """Notes whether an operation reads memory at one of some addresses."""

    def __init__(self, addresses: set[int]):
        super().__init__()
        self._addresses, self.found = addresses, False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Calls the operation."""
        given = (x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor))
        self.found |= any(x.untyped_storage().data_ptr() in self._addresses for x in given)
        return func(*args, **(kwargs or {}))
