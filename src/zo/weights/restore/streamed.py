"""restore=streamed: the model computes with displaced copies of its weights, block by block, and θ never moves.

Weights come and go by unit, see `zo.weights.units`: during a probe, a unit's displaced weights are written into a
buffer when it is called, by one pass. A large embedding displaces only the rows that it looks up. The buffer is as
large as the largest unit. The losses are bit-identical to those of `snapshot`.

Offloaded tensors are not copied: they are displaced on the device once `zo.weights.offload` has fetched them, and
updates are deferred until they are fetched again.

A weight that is read outside of the call of its unit would not be displaced. During a probe, parameters of θ
therefore raise an error when they are read (`GuardedParameter`). Aliases of a weight, such as its `.data` or an earlier
view, escape this guard; the first step's comparison finds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import Any, cast

import torch
from torch import Tensor, nn

from zo.noise import Move, NoiseKey, PreparedProgram, TensorTable
from zo.weights.aliasing import VIEW, is_alias, is_dense, storage_key
from zo.weights.directions import Terms, at_least_float32, uncast
from zo.weights.offloaded import OffloadedParameter, offload_of
from zo.weights.patching import (
    VIEW_STAYS,
    GuardedParameter,
    Guards,
    ParameterOwners,
    looked_up,
    parameter_owners,
    refuse_scripted,
)
from zo.weights.restore.base import RestoreError, RestorePolicy
from zo.weights.tensors import TrainableTensors, refuse_factored
from zo.weights.units import Batch, Plan, Store, Unit, UnitCalls
from zo.weights.updates import ParameterUpdate, add_rows_, add_to_all_, shared_move, table_of

SMALL_TABLE = 2**15
"""Values of an embedding that are displaced in less time than some of its rows."""

AHEAD = 2**21
"""Bytes of units that are displaced by one pass, which waits for Python once; a processor's caches have them."""


def _read_past(name: str) -> RestoreError:
    what = f"{name} is read outside of the call of its module, where it is not displaced"
    return RestoreError(Streamed.name, what, "snapshot")


class Streamed(RestorePolicy, Store):
    """Replaces the `forward` of the modules that hold θ's tensors while a probe is under way.

    Attributes:
        bytes: Size of the buffers.

    Raises:
        ValueError: If the model is missing, no module holds a tensor, or one holds it in another shape or
            layout.
    """

    name = "streamed"

    def __init__(self, space: TrainableTensors, model: nn.Module | None):
        super().__init__(space, model)
        if model is None:
            raise ValueError("restore=streamed: the tensors' model is needed; give model=")
        away = {i: p for i, p in enumerate(space.parameters) if isinstance(p, OffloadedParameter)}
        self._offload = offload_of(space.parameters)
        self._offloaded = dict[int, int]()
        if self._offload is not None:
            self._offloaded = {self._offload.positions[id(p)]: i for i, p in away.items()}
        here = {i: p for i, p in enumerate(space.parameters) if i not in away}
        owners = _owners_of(model, here, space.names)
        self._calls = UnitCalls(model, owners, self.local, self)
        for buffer in self._calls.buffers.values():
            every = sum(dict(u.sizes).get(buffer, 0) for u in self._calls.units if u.block is None)
            buffer.size = max(buffer.size, min(AHEAD, every))
        self.bytes = sum(buffer.size for buffer in self._calls.buffers.values())
        self._terms: Terms = ()
        self._move: Move | None = None  # the pass that adds the terms, if there is one,
        self._program: PreparedProgram | None = None  # or the program
        unreadable = GuardedParameter.of(self._refuse_read)
        entries = [entry for unit in self._calls.units for entry in unit.entries]
        parameters = {id(p): p for _, _, p, _ in entries if p is not None}.values()
        self._guards = Guards(parameters, unreadable)
        self._readable: bool | None = True  # None while that changes
        self._displaces = False

    def begin(self) -> None:
        """Restores the model if an earlier restoration was interrupted."""
        self._thread = get_ident()
        refuse_factored(zip(self.space.names, self.space.parameters, strict=True))
        if self._displaces or (self._offload is not None and self._offload.mover is not None):
            self.restore()

    def to(self, terms: Terms) -> None:
        """Has the modules compute with θ + Σ c_j z_j."""
        self.space.stopwatch.counts["weights"] += bool(terms)
        self._terms, self._move = terms, shared_move(terms, self.space.engine)
        self._begin_pass()
        if self._offload is not None:
            self._offload.displace_by(self if terms else None)
        elif terms and self._move is None:
            from zo.weights.programs import prepare_displacement  # here: noise alone needs none

            self._program = prepare_displacement(self.space.engine, self.local, terms)
        if not self._displaces:
            self._displaces = True
            self._calls.install()
        self._make_readable(not terms)

    def restore(self) -> None:
        """Removes all patches of the model, also after an interrupted call of a module."""
        self._terms, self._program = (), None
        self._begin_pass()
        if self._offload is not None:
            self._offload.displace_by(None)
        self._calls.restore()
        self._make_readable(True)
        self._calls.remove()
        self._displaces = False

    def _begin_pass(self) -> None:
        """Discards the units that were expected next."""
        self._calls.discard_ahead()
        self._calls.last = None

    def _make_readable(self, readable: bool) -> None:
        """Allows or refuses reads of θ's parameters outside of the calls of their modules."""
        if readable != self._readable:
            self._readable = None
            self._guards.set(not readable)
            self._readable = readable

    def _refuse_read(self, p: Tensor) -> None:
        raise _read_past(self.space.names[self._calls.positions[id(p)]])

    def swaps(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """As `Store.swaps`; not at θ."""
        if self._terms and get_ident() != self._thread:
            what = "the closure calls the model in another thread, whose calls would share the displaced weights"
            raise RestoreError(self.name, what, "snapshot")
        return bool(self._terms)

    def fill(self, plan: Plan, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Writes a unit's displaced weights, and those of the next units as long as they are small."""
        with self.space.stopwatch.running("weights", 0):
            if plan.unit.looks_up and plan.memory[0].numel() > SMALL_TABLE:
                plan.rows = looked_up(plan.unit.module, args)
            if plan.rows is not None:
                self._displace(plan.memory, [self.local[plan.tensors[0]]], plan.tensors, plan.rows)
                return plan.memory
            batch = self._calls.batch(plan, AHEAD - plan.unit.bytes)
            if self._move is not None:
                batch.table = batch.table or self._table_of(batch)
            if self._move is not None and batch.table is not None:
                batch.table.add_(self._move)
            elif self._program is not None:
                self._program.run(batch.tensors, batch.memory)
            else:
                thetas = [self.local[i] for i in batch.tensors]
                self._displace(batch.memory, thetas, batch.tensors, None)
            for of in batch.plans:
                of.ready = True
            return batch.memory

    @torch.inference_mode(False)  # as the plans' memory
    def _table_of(self, batch: Batch) -> TensorTable | None:
        """Prepares passes that write a batch's memory; None where a tensor has another dtype than they have."""
        thetas = [self.local[i] for i in batch.tensors]
        table = table_of(self.space.engine, batch.memory, thetas, batch.tensors)
        if table is not None:
            table.private = True  # and θ keeps its memory
        return table

    def view_stays(self, unit: str) -> Exception:
        """As `Store.view_stays`."""
        return RestoreError(self.name, unit + VIEW_STAYS, "snapshot")

    def _displace(
        self,
        out: Sequence[Tensor],
        thetas: list[Tensor],
        tensors: Sequence[int],
        rows: Tensor | None,
    ) -> None:
        """Writes tensors, displaced, or of one table the rows with these indices, (r,)."""
        # A layer that vmap calls is displaced outside of it: noise is no function of its inputs.
        with uncast(thetas[0].device), torch._C._DisableFuncTorch():
            if rows is None:
                add_to_all_(out, thetas, tensors, self._terms, None)
            else:
                on = rows.to(thetas[0].device)
                add_rows_(out[0], thetas[0], tensors[0], self._terms, on)

    def displace(self, plan: Plan) -> None:
        """Displaces offloaded tensors on the device, those that are of θ."""
        found = zip(map(self._offloaded.get, plan.tensors), plan.memory, strict=True)
        if there := {i: t for i, t in found if i is not None}:
            with self.space.stopwatch.running("weights", 0):
                self._displace([*there.values()], [*there.values()], [*there], plan.rows)

    def entries(self, i: int, index: Tensor) -> Tensor:
        """As `RestorePolicy.entries`."""
        p = self.space.parameters[i]
        if self._offload is None or not isinstance(p, OffloadedParameter):
            return super().entries(i, index)
        self._offload.apply_deferred()
        return at_least_float32(self._offload.stores[self._offload.positions[id(p)]].entries(index))

    def refuse_reader(self, i: int) -> None:
        """Raises RestoreError if an offloaded tensor is of θ."""
        if (position := self._offloaded.get(i)) is not None:
            raise _read_past(self.space.names[position])

    def prepare(self) -> None:
        """Makes offloaded tensors writable."""
        if self._offload is not None:
            self._offload.make_writable([*self._offloaded])
            for i in self._offloaded.values():
                self.local[i] = self.space.parameters[i].detach()

    def apply_update(
        self, update: ParameterUpdate, decay: float, key: NoiseKey | None, pending: Terms = ()
    ) -> None:
        """Updates θ as `ParameterSpace.apply_update`; for offloaded tensors deferred until they are fetched."""
        if self._offload is None:
            super().apply_update(update, decay, key, pending)
            return
        targets = self.targets(decay, key)
        with self.space.stopwatch.running("weights"):
            for at in targets:
                if at.i not in self._offloaded.values():
                    update.apply(at, pending)

        def apply(i: int, p: Tensor) -> None:
            update.apply(targets[self._offloaded[i]]._replace(p=p), pending)

        self._offload.defer_update(self._offloaded, apply)

    def apply_deferred(self) -> None:
        """Applies the last update to the offloaded tensors that have not been fetched since."""
        if self._offload is not None:
            self._offload.apply_deferred()


def _owners_of(
    model: nn.Module, tensors: Mapping[int, Tensor], names: Sequence[str]
) -> ParameterOwners:
    """Returns the modules that hold tensors.

    Raises:
        ValueError: If no module holds a tensor, or one holds it in another shape or layout.
    """
    index = {storage_key(t): i for i, t in tensors.items()}
    held = parameter_owners(model, lambda p: index.get(storage_key(p)))
    refuse_scripted(Streamed.name, held)
    for module, name, i in (entry for of in held.values() for entry in of):
        p, like = cast(Tensor, module._parameters[name]), tensors[i]
        if not (is_alias(p, like) and is_dense(like)):
            path = next(path for path, of in model.named_modules() if of is module)
            raise ValueError(f"restore=streamed: {path}.{name} {VIEW}")
    if missing := {*tensors} - {i for of in held.values() for *_, i in of}:
        raise ValueError(f"restore=streamed: no module of the model holds {names[min(missing)]}")
    return held
