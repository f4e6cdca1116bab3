"""Fetches offloaded weights to the device for the call of their unit, see `zo.weights.units`.

The `forward` of each unit is replaced. The new one fetches the weights into a buffer, displaces them during a probe,
and calls the unit with them. Meanwhile the units that followed in the last pass are prefetched. The buffer has room for
the model's two largest units.

An update of θ is deferred: it is applied when a tensor is fetched next, and written back then. A step with two forward
passes reads the weights twice and writes them once. `apply_deferred` updates the tensors that were not fetched. An
embedding fetches only the rows that it looks up, unless a deferred update is missing from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from zo.weights.aliasing import FormerMemory
from zo.weights.offload.backing_store import BackingStore, copies
from zo.weights.offload.transfer_stream import TransferStream
from zo.weights.offloaded import OffloadedParameter, OffloadError, OffloadRefused, offloaded
from zo.weights.patching import VIEW_STAYS, ReplacedForward, looked_up, parameter_owners
from zo.weights.scratch import aligned
from zo.weights.units import Plan, Store, Unit, UnitCalls

if TYPE_CHECKING:
    from zo.weights.restore.streamed import Streamed

Update: TypeAlias = Callable[[int, Tensor], None]
"""Applies a deferred update to tensor i, which is on the device."""


class Offload(Store):
    """A model whose weights lie in the host's memory or on disk. `zo.offload` makes it.

    Args:
        model: Holds the parameters; other parameters and buffers are moved to the device.
        stores: The backing store of each parameter.
        former: Where parameters were in memory.
        device: The computing device.
        directory: For copies of trained weights whose files must not be written.

    Attributes:
        device: As given.
        budget: Bytes of the two largest units with different weights. Weights on the device take at most as many,
            unless larger units are nested.
        parameters: In the model's order.
        stores: The backing store of each.
        positions: By their ids, those of the parameters.
        mover: Displaces weights on the device; None without a probe.
        visited: Ids of the parameters that modules have used; the caller empties it.
    """

    def __init__(
        self,
        model: nn.Module,
        stores: Mapping[nn.Parameter, BackingStore],
        former: Mapping[nn.Parameter, FormerMemory],
        device: torch.device,
        directory: str | Path | None,
    ):
        self.device, self._directory = device, directory
        named = {p: name for name, p in model.named_parameters() if p in stores}
        self.names, self.parameters = [*named.values()], [*named]
        self.stores = [stores[p] for p in named]
        self.positions = {id(p): i for i, p in enumerate(named)}
        self._former = {**former}
        self._guards = offloaded(self, [(p, stores[p].tensor) for p in named])
        self._begin = [p._version for p in named]
        owners = parameter_owners(model, lambda p: self.positions.get(id(p)))
        self._calls = UnitCalls(model, owners, self.parameters, self, device)
        units = {frozenset(u.tensors): u.sizes for u in self._calls.units if u.block is None}
        sizes = [size for of in units.values() for _, size in of]  # tied ones are one
        self._transfers = TransferStream(device)
        self._buffer = self._calls.buffers[device]
        self._buffer.size = self.budget = sum(sorted(sizes)[-2:])
        self._buffer.allocated = self._transfers.record_stream
        self.mover: Streamed | None = None
        self.visited: set[int] = set()
        self._deferred: Update | None = None
        self._outdated: set[int] = set()  # tensors without the deferred update
        self._ended: BaseException | None = None  # closed, or an update was applied in part
        self._calls.install()
        self._root = ReplacedForward.of(model, self._call_model)
        if device.type != "cpu":
            self._root.put()

    def defer_update(self, indices: Collection[int], update: Update) -> None:
        """Defers an update of tensors until they are fetched next."""
        self._check_open()
        self.apply_deferred()
        self._calls.discard_ahead()
        self._deferred, self._outdated = update, {*indices}
        self._prefetch(self._calls.last)

    def displace_by(self, mover: Streamed | None) -> None:
        """Sets what displaces weights when they are fetched; None is nothing."""
        if mover is not None:
            self._check_open()
        else:
            self._calls.restore()
        self.mover = mover

    def apply_deferred(self) -> None:
        """Applies the deferred update to the tensors that were not fetched since."""
        if self._outdated:
            self._calls.discard_ahead()  # a transfer that had begun may apply the last of it
        if self._outdated:
            self._check_open()
            place = self._buffer.take(max(aligned(self.parameters[i]) for i in self._outdated))
            for i in sorted(self._outdated):
                (p,) = place.tensors([self.parameters[i]])
                self._transfers.wait(self._transfers.submit(partial(self._read_tensor, i, p)))
            self._buffer.give_back(place)
        self._transfers.drain()

    @torch.inference_mode(False)
    def make_writable(self, indices: Sequence[int]) -> None:
        """Copies tensors from files that must not be written into a file of the directory.

        Raises:
            OffloadRefused: If there is no directory, or too little room.
        """
        wanted = [i for i in indices if not self.stores[i].writable]
        if not wanted:
            return
        if self._directory is None:
            raise OffloadRefused(
                "directory: must be given, for the copy of the weights that are trained"
            )
        self._calls.discard_ahead()
        named = {self.names[i]: (self.stores[i], self.parameters[i].dtype) for i in wanted}
        name = f"trained-{wanted[0]}.safetensors"  # beside those of other optimizers
        found = copies(Path(self._directory, name), named)
        for i in wanted:
            p, self.stores[i] = self.parameters[i], found[self.names[i]]
            self._former.setdefault(p, FormerMemory(p.data))
            p.data = self.stores[i].tensor

    def whole(self, p: OffloadedParameter) -> Tensor:
        """Returns a parameter's values in the host's memory."""
        self.apply_deferred()
        self._calls.discard_ahead()
        self._calls.release()  # where the host computes, the copy needs its memory
        return self.stores[self.positions[id(p)]].whole()

    def former(self, p: nn.Parameter) -> Tensor | None:
        """Returns a parameter in the memory that it was in before, if something else keeps that."""
        found = self._former.get(p)
        return None if found is None else found.tensor()

    def close(self) -> None:
        """Restores the model's own forwards; its weights stay in the host's memory, or memory-mapped."""
        if self._ended is None:
            self.apply_deferred()
            self._ended = RuntimeError("the offload is closed; make a new optimizer")
        self._calls.discard_ahead()
        self._root.take_back()
        self._calls.remove()
        self._guards.set(False)
        self._transfers.close()

    def __enter__(self) -> Offload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def before_reading(self, p: Tensor) -> None:
        """Brings the values up to date, and discards prefetched ones: the reader may write."""
        if self.mover is not None:
            self.mover.refuse_reader(self.positions[id(p)])
        self._calls.discard_ahead()
        self.apply_deferred()

    def _call_model(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model with its inputs moved to the device."""
        args, kwargs = tree_map_only(Tensor, lambda t: t.to(self.device), (args, kwargs))
        return self._root.inner(*args, **kwargs)

    def fill(self, plan: Plan, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Fetches a unit's weights, prefetches the next units, and displaces the weights during a probe."""
        self.visited.update(id(p) for *_, p in plan.own)
        if plan.work is not None and plan.versions != self._versions(plan):
            self.discard(plan)
        work = plan.work or self._fetch(plan, args)
        try:
            self._prefetch(plan.unit)
        finally:
            self._transfers.wait(work)
        self._check_open()
        if self.mover is not None:
            self.mover.displace(plan)
        return plan.memory

    def view_stays(self, unit: str) -> Exception:
        """As `Store.view_stays`; backpropagation keeps views, too."""
        if torch.is_grad_enabled():
            return RuntimeError(
                f"{unit}: its weights are offloaded and are on the device only during the call, so nothing can be"
                " backpropagated through it; call the model under torch.no_grad()"
            )
        return OffloadRefused(f"{unit}{VIEW_STAYS}; its weights cannot be offloaded")

    def _fetch(self, plan: Plan, args: tuple[Any, ...] = ()) -> Future[Any]:
        """Starts the transfer of a unit's weights, of an embedding perhaps only of the rows for some arguments.

        Raises:
            OffloadError: If a weight was changed that is only read.
        """
        plan.versions = self._versions(plan)
        for i, version in zip(plan.tensors, plan.versions, strict=True):
            if version != self._begin[i] and not self.stores[i].writable:
                raise OffloadError(
                    f"{self.names[i]}: was changed in the model, but is not trained and is read from its file"
                )
        outdated = self._outdated.intersection(plan.tensors)
        rows = None if outdated else looked_up(plan.unit.module, args)
        plan.rows = None if rows is None else torch.unique(rows.cpu())
        plan.work = self._transfers.submit(partial(self._read, plan))
        return plan.work

    def _read(self, plan: Plan) -> None:
        """Reads weights to the device, and applies the deferred update."""
        if plan.rows is not None:
            self._transfers.drain()
            values = self.stores[plan.tensors[0]].rows(plan.rows)
            rows = plan.rows.to(self.device)
            plan.memory[0].index_copy_(0, rows, values.to(self.device))
            return
        for i, p in zip(plan.tensors, plan.memory, strict=True):
            self._read_tensor(i, p)

    def _read_tensor(self, i: int, p: Tensor) -> None:
        """Reads a tensor to the device; applies the deferred update, if it lacks that, and writes it back."""
        self.stores[i].read(p)
        if i not in self._outdated:
            return
        assert self._deferred is not None
        try:
            self._deferred(i, p)
            self.stores[i].write(p)
        except BaseException as error:
            self._ended = error
            raise
        self._outdated.discard(i)

    def _prefetch(self, unit: Unit | None) -> None:
        """Starts transfers for the units that followed in the last pass, as many as the buffer has room for."""
        for plan in self._calls.extend(unit):
            if not plan.unit.looks_up or self._outdated.intersection(plan.tensors):
                self._fetch(plan)

    def discard(self, plan: Plan) -> None:
        """Ends the transfer of unused weights."""
        if plan.work is not None and not plan.work.cancel():
            with suppress(Exception):  # the next transfer raises it again
                self._transfers.wait(plan.work)
        plan.work = None

    def _versions(self, plan: Plan) -> list[int]:
        return [self.parameters[i]._version for i in plan.tensors]

    def _check_open(self) -> None:
        """Raises an error if it is closed, or that which interrupted an update: the weights are not θ since then."""
        if self._ended is not None:
            raise self._ended
