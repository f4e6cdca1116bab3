"""Fetches offloaded weights to the device for the call of their module, and frees the memory after it.

The `forward` of each module with offloaded weights is replaced. The new one fetches the weights, displaces them during
a probe, calls the module's own forward with them, and frees them when it returns or raises. Meanwhile the modules that
followed in the last pass are prefetched. Weights in use and prefetched ones take at most as many bytes as the model's
two largest modules.

An update of θ is deferred: it is applied when a tensor is fetched next, and written back then. A step with two forward
passes reads the weights twice and writes them once. `apply_deferred` updates the tensors that were not fetched. An
embedding fetches only the rows that it looks up, unless a deferred update is missing from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from zo.weights.offload.backing_store import BackingStore, copies
from zo.weights.offload.pool import Pool
from zo.weights.offload.transfer_stream import StreamEvent, TransferStream
from zo.weights.offloaded import OffloadedParameter, OffloadError, OffloadRefused, offloaded
from zo.weights.patching import (
    VIEW_STAYS,
    ReplacedForward,
    SwappedCalls,
    ViewStaysError,
    looked_up,
    looks_up,
    parameter_owners,
)
from zo.weights.scratch import Scratch, aligned

Update: TypeAlias = Callable[[int, Tensor], None]
"""Applies a deferred update to tensor i, which is on the device."""


class Mover(Protocol):
    """Displaces weights on the device during a probe."""

    def displace(self, i: int, p: Tensor, rows: Tensor | None) -> None:
        """Displaces tensor i in place, or its rows with these indices, (r,)."""
        ...

    def refuse_reader(self, i: int) -> None:
        """Raises RestoreError if tensor i is displaced: a reader outside of its module would get θ."""
        ...


@dataclass(eq=False)
class Fetched:
    """Weights of one module, on the device or in transfer.

    Attributes:
        size: Their bytes.
        scratch: Their memory, by position.
        versions: Versions of the parameters when they were read.
        rows: Whether only the rows of a lookup are to be fetched, once they are known.
        work: The transfer.
    """

    size: int
    scratch: dict[int, Scratch] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    rows: bool = False
    work: Future[StreamEvent] | None = None


class Offload:
    """A model whose weights lie in the host's memory or on disk. `zo.offload` makes it.

    Args:
        model: Holds the parameters; other parameters and buffers are moved to the device.
        stores: The backing store of each parameter.
        device: The computing device.
        directory: For copies of trained weights whose files must not be written.

    Attributes:
        device: As given.
        budget: Bytes of the two largest modules with different weights. Weights on the device take at most as many,
            unless larger modules are nested.
        parameters: In the model's order.
        stores: The backing store of each.
        mover: Displaces weights on the device; None without a probe.
        visited: Ids of the parameters that modules have used; the caller empties it.
    """

    def __init__(
        self,
        model: nn.Module,
        stores: Mapping[nn.Parameter, BackingStore],
        device: torch.device,
        directory: Path | None,
    ):
        self.device, self._directory = device, directory
        named = {p: name for name, p in model.named_parameters() if p in stores}
        self.names = [*named.values()]
        self.stores = [stores[p] for p in named]
        self.parameters = offloaded(self, model, [(p, stores[p].tensor) for p in named])
        self._index = {id(p): i for i, p in enumerate(self.parameters)}
        self._begin = [_version(p) for p in self.parameters]
        self._owners = parameter_owners(model, lambda p: self._index.get(id(p)))
        self._module_names = {module: name for name, module in model.named_modules()}
        self._sizes = [aligned(p) for p in self.parameters]
        sets = {m: frozenset(i for *_, i in held) for m, held in self._owners.items()}
        self._bytes = {m: sum(self._sizes[i] for i in own) for m, own in sets.items()}
        different = {own: self._bytes[m] for m, own in sets.items()}  # tied ones are one
        self.budget = sum(sorted(different.values())[-2:])
        self.mover: Mover | None = None
        self.visited: set[int] = set()
        self._deferred: Update | None = None
        self._outdated: set[int] = set()  # tensors without the deferred update
        self._failed: BaseException | None = None  # of an update that was applied in part
        self._swapped = SwappedCalls()
        self._in_use = 0  # bytes of the modules in a call
        self._prefetched: dict[nn.Module, Fetched] = {}  # in the order of calls
        self._after: dict[nn.Module, nn.Module] = {}  # module -> the one called after it
        self._last: nn.Module | None = None
        self._transfers = TransferStream(device)
        self._pool = Pool(device, self.budget, self._transfers)
        call = torch.compiler.disable(self._call)  # a compiled loss calls it uncompiled
        self._forwards = {
            module: ReplacedForward.of(module, partial(call, module)).put()
            for module in self._owners
        }
        self._root = (
            ReplacedForward.of(model, self._call_model).put() if device.type != "cpu" else None
        )

    def defer_update(self, indices: Collection[int], update: Update) -> None:
        """Defers an update of tensors until they are fetched next."""
        self._check_open()
        self.apply_deferred()
        self._discard_prefetched()
        self._deferred, self._outdated = update, {*indices}
        self._prefetch(self._last)

    def displace_by(self, mover: Mover | None) -> None:
        """Sets what displaces weights when they are fetched; None is nothing."""
        if mover is not None:
            self._check_open()
        self.mover = mover

    def apply_deferred(self) -> None:
        """Applies the deferred update to the tensors that were not fetched since."""
        self._raise_failed()
        if self._outdated:
            self._discard_prefetched()
            scratch, ready = self._pool.take(max(self._sizes[i] for i in self._outdated))
            self._transfers.synchronize(
                self._transfers.submit(partial(self._update_outdated, scratch), [ready])
            )
            self._pool.give_back([scratch])
        self._transfers.drain()

    @torch.inference_mode(False)
    def make_writable(self, indices: Sequence[int]) -> None:
        """Copies tensors from files that must not be written into a file of the directory.

        Raises:
            OffloadRefused: If there is no directory, or too little room.
        """
        wanted = {i: self.parameters[i].dtype for i in indices if not self.stores[i].writable}
        if not wanted:
            return
        if self._directory is None:
            raise OffloadRefused(
                "directory: must be given, for the copy of the weights that are trained"
            )
        self._discard_prefetched()
        named = {self.names[i]: (self.stores[i], dtype) for i, dtype in wanted.items()}
        found = copies(self._directory / "trained.safetensors", named)
        for i, copy in zip(wanted, found, strict=True):
            self.stores[i] = copy
            self.parameters[i].data = copy.tensor
            self._begin[i] = _version(self.parameters[i])

    def whole(self, p: OffloadedParameter) -> Tensor:
        """Returns a parameter's values in the host's memory."""
        self.apply_deferred()
        self._discard_prefetched()
        self._pool.release()  # where the host computes, the copy needs its memory
        return self.stores[self._index[id(p)]].whole()

    def position(self, p: Tensor) -> int:
        """Returns the position of a parameter."""
        return self._index[id(p)]

    def close(self) -> None:
        """Restores the model's own forwards; its weights stay in the host's memory, or memory-mapped."""
        if self._forwards:
            if self._failed is None:
                self.apply_deferred()
            self._discard_prefetched()
            for forward in (self._root, *self._forwards.values()):
                if forward is not None:
                    forward.take_back()
            for p in self.parameters:
                p.__class__ = nn.Parameter  # type: ignore[assignment]
            self._forwards = {}
            self._transfers.close()

    def __enter__(self) -> Offload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def before_reading(self, p: Tensor) -> None:
        """Brings the values up to date, and discards prefetched ones: the reader may write."""
        if self.mover is not None:
            self.mover.refuse_reader(self._index[id(p)])
        self._discard_prefetched()
        self.apply_deferred()

    def _call_model(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model with its inputs moved to the device."""
        assert self._root is not None
        args, kwargs = tree_map_only(Tensor, lambda t: t.to(self.device), (args, kwargs))
        return self._root.inner(*args, **kwargs)

    def _call(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Calls a module's own forward with its weights on the device."""
        if torch.is_grad_enabled() and any(
            isinstance(x, Tensor) and x.requires_grad for x in (*args, *kwargs.values())
        ):
            raise RuntimeError(
                f"{self._named(module)}: its weights are offloaded and are on the device only during the call, so"
                " nothing can be backpropagated through it; call the model under torch.no_grad()"
            )
        entries = [
            (owner._parameters, name, i)
            for owner, name, i in self._owners[module]
            if owner._parameters.get(name) is self.parameters[i]  # else of `functional_call`
        ]
        if not entries:
            return self._forwards[module].inner(*args, **kwargs)
        self.visited.update(id(self.parameters[i]) for *_, i in entries)
        self._in_use += self._bytes[module]
        try:
            fetched = self._weights_of(module, args)
            scratch, views = fetched.scratch, {s: s.views() for s in fetched.scratch.values()}
            compute = partial(self._forwards[module].inner, *args, **kwargs)
            on_device = lambda i: scratch[i].part(self.parameters[i])[0]  # noqa: E731
            output = self._swapped.call(entries, compute, on_device, views)
        except ViewStaysError:
            raise OffloadRefused(
                f"{self._named(module)}{VIEW_STAYS}; its weights cannot be offloaded"
            ) from None
        finally:
            self._in_use -= self._bytes[module]
        self._pool.give_back(scratch.values())
        return output

    def _weights_of(self, module: nn.Module, args: tuple[Any, ...]) -> Fetched:
        """Returns a module's weights on the device, displaced during a probe."""
        if self._last is not None:
            self._after[self._last] = module
        self._last = module
        fetched = self._take_prefetched(module)
        if fetched is not None and (fetched.rows or self._stale(fetched)):
            self._discard(fetched)
            fetched = None
        own, swapped = self._owners[module], self._swapped.tensors
        indices = [*dict.fromkeys(i for *_, i in own if i not in swapped)]
        rows = looked_up(module, args)
        if fetched is not None:
            rows = None
        elif rows is not None and indices and not {*indices} & self._outdated:
            rows = torch.unique(rows.cpu())
            fetched = self._fetch_rows(module, indices[0], rows)
        else:
            self._discard_prefetched()
            fetched, rows = self._fetch(module, indices), None
        self._prefetch(module)
        if fetched.work is not None:
            self._transfers.wait(fetched.work)
        self._raise_failed()
        if self.mover is not None:
            for i in indices:
                self.mover.displace(i, fetched.scratch[i].part(self.parameters[i])[1], rows)
        return fetched

    def _fetch(self, module: nn.Module, indices: Sequence[int]) -> Fetched:
        """Starts a transfer of a module's weights."""
        fetched = Fetched(self._bytes[module])
        behind = []
        for i in indices:
            fetched.versions[i] = self._checked_version(i)
            fetched.scratch[i], ready = self._pool.take(self._sizes[i])
            behind.append(ready)
        with torch.inference_mode(False):  # the transfers' thread writes them outside of it
            parts = {i: of.part(self.parameters[i])[1] for i, of in fetched.scratch.items()}
        fetched.work = self._transfers.submit(partial(self._read, parts), behind)
        return fetched

    def _read(self, parts: Mapping[int, Tensor]) -> None:
        """Reads tensors to the device, and applies the deferred update."""
        for i, p in parts.items():
            self.stores[i].read(p)
            if i in self._outdated:
                self._update(i, p)

    def _update(self, i: int, p: Tensor) -> None:
        """Applies the deferred update to a tensor on the device, and writes it back."""
        assert self._deferred is not None
        try:
            self._deferred(i, p)
            self.stores[i].write(p)
        except BaseException as error:
            self._failed = error
            raise
        self._outdated.discard(i)

    def _update_outdated(self, scratch: Scratch) -> None:
        """Applies the deferred update to all tensors that lack it."""
        for i in sorted(self._outdated):
            self._read({i: scratch.part(self.parameters[i])[1]})

    def _fetch_rows(self, module: nn.Module, i: int, rows: Tensor) -> Fetched:
        """Returns a table on the device; only these rows, (r,), are filled."""
        scratch, _ = self._pool.take(self._sizes[i])
        fetched = Fetched(self._bytes[module], {i: scratch})
        self._transfers.drain()
        values = self.stores[i].rows(rows).to(self.device)
        scratch.part(self.parameters[i])[1].index_copy_(0, rows.to(self.device), values)
        return fetched

    def _prefetch(self, module: nn.Module | None) -> None:
        """Starts transfers for the modules that followed in the last pass, as many as the budget allows."""
        room = self.budget - self._in_use - sum(of.size for of in self._prefetched.values())
        at = next(reversed(self._prefetched), module)
        while at is not None and (at := self._after.get(at)) is not None:
            if at in self._prefetched or at is module or self._bytes[at] > room:
                return
            room -= self._bytes[at]
            indices = [*dict.fromkeys(i for *_, i in self._owners[at])]
            if not looks_up(at) or {*indices} & self._outdated:
                self._prefetched[at] = self._fetch(at, indices)
            else:
                self._prefetched[at] = Fetched(self._bytes[at], rows=True)

    def _take_prefetched(self, module: nn.Module) -> Fetched | None:
        """Returns a module's prefetched weights, if any, and discards those of modules before it."""
        if module in self._prefetched:
            while (first := next(iter(self._prefetched))) is not module:
                self._discard(self._prefetched.pop(first))
        return self._prefetched.pop(module, None)

    def _discard_prefetched(self) -> None:
        """Discards all prefetched weights."""
        ahead, self._prefetched = self._prefetched, {}
        for fetched in reversed(ahead.values()):  # the first may be in transfer
            self._discard(fetched)

    def _discard(self, fetched: Fetched) -> None:
        """Returns the memory of unused weights to the pool."""
        if fetched.work is not None and not fetched.work.cancel():
            with suppress(Exception):  # the next transfer raises it again
                self._transfers.wait(fetched.work)
        self._pool.give_back(fetched.scratch.values())

    def _stale(self, fetched: Fetched) -> bool:
        """Returns whether a parameter was written since it was fetched."""
        return any(_version(self.parameters[i]) != was for i, was in fetched.versions.items())

    def _checked_version(self, i: int) -> int:
        """Returns a parameter's version; raises OffloadError if a read-only one was changed."""
        version = _version(self.parameters[i])
        if version != self._begin[i] and not self.stores[i].writable:
            raise OffloadError(
                f"{self.names[i]}: was changed in the model, but is not trained and is read from its file"
            )
        return version

    def _check_open(self) -> None:
        if not self._forwards:
            raise RuntimeError("the offload is closed; make a new optimizer")

    def _raise_failed(self) -> None:
        """Raises the error that interrupted an update: from then on the weights are not θ."""
        if self._failed is not None:
            raise self._failed

    def _named(self, module: nn.Module) -> str:
        return f"{self._module_names[module] or 'the model'} ({type(module).__name__})"


def _version(p: Tensor) -> int:
    return 0 if p.is_inference() else p._version
