"""Calls of a model's units with other tensors in place of their weights.

A unit is what a model calls as a whole: each member of an outermost `ModuleList`, with all modules in it, which is a
block; elsewhere each module that holds weights. Before the call of a unit, a store puts the values that it computes
with into a buffer, by a pass or a transfer, and with them those of the units that followed in the last forward pass.
They take the parameters' places until the call returns or raises. The device itself is the store under
`restore=streamed`; the host's memory and files are those of `zo.weights.offload`.

A module that is called from outside of its block is a unit of its own. An embedding always is one, since only the rows
that it looks up are needed.

A unit must not keep the tensors that were put in place, or views of them, and gets copies of those that it returns.
"""

from __future__ import annotations

import gc
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from sys import getrefcount
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from zo.noise import TensorTable
from zo.weights.aliasing import is_alias, storage_key
from zo.weights.patching import CONTAINERS, ParameterOwners, ReplacedForward, looks_up
from zo.weights.scratch import Buffer, Place, Span, aligned, in_frames, without_views

VERSIONS = count(2**31)
"""`_version` of the tensors of each filling, unlike θ's: layers may keep what they computed of a weight while it stays.
"""

Entry: TypeAlias = "tuple[dict[str, Any], str, Any, int]"
"""A parameter that is swapped: the dictionary that it is in, its name there, itself, and its tensor's position."""

Lent: TypeAlias = "tuple[tuple[Span, ...], ...]"
"""All places that each buffer has lent."""

Slot: TypeAlias = "tuple[dict[str, Any], str, Any]"
"""A module's dictionary, a name in it, and what a call puts there: a parameter, or a forward without our hook."""

_uses: Any = Tensor._use_count  # type: ignore[attr-defined]


def in_place(slots: Sequence[Slot]) -> bool:
    """Returns whether all slots hold what they name."""
    try:
        for of, name, value in slots:
            if of[name] is not value:
                return False
    except KeyError:
        return False
    return True


def put(slots: Sequence[Slot]) -> None:
    """Puts into all slots what they name."""
    for of, name, value in slots:
        of[name] = value


@dataclass(eq=False)
class Plan:
    """What a call of a unit swaps.

    Attributes:
        unit: The unit.
        tensors: Positions of the tensors.
        places: Their memory.
        memory: The tensors that are put in place, in that memory.
        own: What is outside of the call where it swaps: parameters, and of a block the hooks of its modules.
        inside: What is there during the call.
        ready: Whether the memory has the values of all tensors.
        held: References to the memory between calls, as `references`; None if they may have changed.
        batch: Plans that are filled together with this one, the first.
        versions: Of the parameters when the store read them.
        rows: Of an embedding, those that are there, (r,); None is all.
        work: The transfer that fills the memory.
        storages: Of the memory, by address.
    """

    unit: Unit
    tensors: tuple[int, ...]
    places: tuple[Place, ...]
    memory: tuple[Tensor, ...]
    own: Sequence[Slot]
    inside: Sequence[Slot]
    ready: bool = False
    held: list[int] | None = None
    batch: Batch | None = None
    versions: list[int] = field(default_factory=list)
    rows: Tensor | None = None
    work: Future[Any] | None = None

    def __post_init__(self) -> None:
        self.storages = {t.untyped_storage()._cdata for t in self.memory}

    def put_back(self) -> None:
        """Puts back what is outside of the call, but no hook in the place of another forward."""
        if in_place(self.inside):
            put(self.own)
            return
        for own, inside in zip(self.own, self.inside, strict=True):
            if not isinstance(own[-1], ReplacedForward) or in_place([inside]):
                put([own])

    def references(self) -> list[int]:
        """Counts the tensors' views, and references to them in Python and in C++."""
        views = map(torch._C._storage_Use_Count, self.storages)
        return [*views, *map(getrefcount, self.memory), *map(_uses, self.memory)]


@dataclass(eq=False)
class Batch:
    """Plans that are filled together, in the order of their calls.

    Attributes:
        plans: The plans.
        following: The unit that was called after each.
        lent: What the buffers have lent with all of them.
        units: Of the plans.
        tensors: Positions of all tensors.
        memory: Their memory.
        table: Of passes that write it, if the store has prepared one.
    """

    plans: list[Plan]
    following: list[Unit | None]
    lent: Lent
    table: TensorTable | None = None

    def __post_init__(self) -> None:
        self.units = [plan.unit for plan in self.plans]
        self.tensors = [i for plan in self.plans for i in plan.tensors]
        self.memory = (*(t for plan in self.plans for t in plan.memory),)


class Unit:
    """A module whose call swaps weights.

    Args:
        module: The module.
        entries: Its weights.
        block: The block that it is a part of, whose call swaps its weights, too; None is itself.

    Attributes:
        hook: Its forward while it is replaced.
        looks_up: Whether it reads only some rows of its weight.
        tensors: Positions of its weights.
        sizes: Bytes that they take in each buffer.
        members: Of a block, the hooks of the other modules.
        usual: What is outside of its call where that swaps, unless somebody else has put something there.
        plans: Of that, by what the buffers have lent, and which places of that it has.
    """

    hook: ReplacedForward
    usual: list[Slot]

    def __init__(self, module: nn.Module, entries: list[Entry], block: Unit | None):
        self.module, self.block, self.looks_up = module, block, looks_up(module)
        self.entries, self.tensors = entries, _tensors(entries)
        self.sizes: list[tuple[Buffer, int]] = []
        self.members: list[ReplacedForward] = []
        self.plans: dict[tuple[Lent, tuple[Span, ...]], Plan] = {}

    @property
    def bytes(self) -> int:
        """Bytes that its weights take."""
        return sum(size for _, size in self.sizes)


class Store(ABC):
    """Where the values are that units compute with."""

    def swaps(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Returns whether a call of a unit swaps weights; each does where nothing else is said."""
        return True

    @abstractmethod
    def fill(self, plan: Plan, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Fills a plan's memory for a call, and may fill that of `UnitCalls.batch`; returns the tensors it wrote."""

    @abstractmethod
    def view_stays(self, unit: str) -> Exception:
        """Returns the error for a unit that keeps a view."""

    def discard(self, plan: Plan) -> None:
        """Ends the work on a plan whose unit is not called; some have none."""
        return


class UnitCalls:
    """The units of a model, and their calls.

    Args:
        model: The model.
        owners: The modules that hold the tensors, and where.
        tensors: The tensors by position; their shapes, strides and dtypes count.
        store: Where their values are.
        device: Of the memory that units compute with; None is that of each tensor.

    Attributes:
        units: All units.
        buffers: By their device, each as large as nested calls need.
        last: The unit that was called last; None is none of this pass.
        ahead: Plans of calls that are expected next, in their order.
    """

    def __init__(
        self,
        model: nn.Module,
        owners: ParameterOwners,
        tensors: Sequence[Tensor],
        store: Store,
        device: torch.device | None = None,
    ):
        self._tensors, self._store, self._device = tensors, store, device
        self._names = {module: name for name, module in model.named_modules()}
        blocks = _blocks(model, owners)
        held: dict[nn.Module, list[Entry]] = {
            m: [(of._parameters, name, of._parameters[name], i) for of, name, i in own]
            for m, own in owners.items()
        }
        for module, block in blocks.items():
            if module is not block:
                held.setdefault(block, []).extend(held[module])
        made: dict[nn.Module, Unit] = {}
        for module in sorted(held, key=lambda m: blocks.get(m, m) is not m):  # blocks come first
            made[module] = Unit(module, held[module], made.get(blocks.get(module, module)))
        self.units = [*made.values()]
        parameters = [entry[2:] for entries in held.values() for entry in entries]
        self.positions = {id(p): i for p, i in parameters}
        self._addresses = {storage_key(p): i for p, i in parameters if p is not None}
        devices = {device} if device is not None else {tensors[i].device for _, i in parameters}
        self.buffers = {on: Buffer(0, on) for on in devices}
        for unit in self.units:
            unit.hook = ReplacedForward.of(unit.module, self._forward_of(unit))
            unit.sizes = self._sizes(unit.tensors)
            if unit.block is not None:
                unit.block.members.append(unit.hook)
        for buffer in self.buffers.values():
            whole = [unit for unit in self.units if unit.block is None]
            sizes = {unit.module: dict(unit.sizes).get(buffer, 0) for unit in whole}
            buffer.size = _nested_bytes(model, sizes)
        for unit in self.units:
            unit.usual = _slots(unit.entries, unit.members)
        self._hooks = [(vars(unit.module), "forward", unit.hook) for unit in self.units]
        self._replaced: list[Any] = []  # the forwards under the hooks, and those of their classes
        self._calls: list[Plan] = []  # that are under way
        self._after: dict[Unit, Unit] = {}  # unit -> the one called after it
        self.last: Unit | None = None
        self.ahead: dict[Unit, Plan] = {}

    def install(self) -> None:
        """Replaces the units' forwards."""
        forwards = [of.get("forward") for of, *_ in self._hooks]
        forwards += [type(unit.module).forward for unit in self.units]
        if forwards == self._replaced:
            put(self._hooks)
            return
        for unit in self.units:
            unit.hook.put()
        self._forget()
        self._replaced = forwards

    def remove(self) -> None:
        """Restores the units' own forwards."""
        for unit in self.units:
            unit.hook.take_back()

    def restore(self) -> None:
        """Ends calls that were interrupted, and gives back all memory but that of plans ahead."""
        for plan in self._calls:
            plan.put_back()
        if self._calls:
            self._forget()
        self._calls.clear()
        kept = [place for plan in self.ahead.values() for place in plan.places]
        for buffer in self.buffers.values():
            buffer.taken = sorted(place.span for place in kept if place.memory is buffer.own)

    def release(self) -> None:
        """Frees the buffers' memory, unless some of it is taken."""
        if not any(buffer.taken for buffer in self.buffers.values()):
            self._forget()
            for buffer in self.buffers.values():
                buffer.own = None

    def _forget(self) -> None:
        """Forgets all plans: the tensors of new ones have no references from outside."""
        for unit in self.units:
            unit.plans.clear()

    def name(self, unit: Unit) -> str:
        """Returns a unit's name in the model, and its kind."""
        module = unit.module
        return f"{self._names[module] or 'the model'} ({type(module).__name__})"

    def extend(
        self, unit: Unit | None, most: float = math.inf, rows: bool = True
    ) -> Iterator[Plan]:
        """Takes memory for the units that followed in the last pass, as long as there is room; yields their plans.

        Args:
            unit: After which, unless there are plans ahead.
            most: Bytes.
            rows: Whether embeddings, of which only some rows are needed, are among them.
        """
        at = next(reversed(self.ahead), unit)
        while (at := self._after.get(at)) is not None:  # type: ignore[arg-type]
            most -= at.bytes
            there = at is unit or at in self.ahead or most < 0 or (at.looks_up and not rows)
            if there or any(buffer.free(size) is None for buffer, size in at.sizes):
                return
            self.ahead[at] = plan = self._plan(at, at.entries, at.usual)
            yield plan

    def batch(self, plan: Plan, most: float) -> Batch:
        """Returns a plan with those of `extend`, no embeddings; those of the last time, if their order is the same."""
        self.discard_ahead()
        found = plan.batch
        if found is not None and [*map(self._after.get, found.units)] == found.following:
            for of in found.plans:
                of.ready = False
            for buffer, taken in zip(self.buffers.values(), found.lent, strict=True):
                buffer.taken = [*taken]
            self.ahead = dict(zip(found.units[1:], found.plans[1:], strict=True))
            return found
        plans = [plan, *self.extend(plan.unit, most, rows=False)]
        for of in [*plans, *(found.plans if found else ())]:
            of.held = None
        following = [self._after.get(of.unit) for of in plans]
        plan.batch = Batch(plans, following, self._lent())
        return plan.batch

    def _lent(self) -> Lent:
        return (*(tuple(buffer.taken) for buffer in self.buffers.values()),)

    def discard_ahead(self) -> None:
        """Gives back the memory of units that are not called."""
        ahead, self.ahead = self.ahead, {}
        for plan in reversed(ahead.values()):  # the first may be in transfer
            self._discard(plan)

    def _discard(self, plan: Plan) -> None:
        self._store.discard(plan)
        self._give_back(plan)

    def _give_back(self, plan: Plan) -> None:
        for place in plan.places:
            place.buffer.give_back(place)

    def _enter(self, unit: Unit) -> Plan | None:
        """Returns what a call of a unit swaps; None if none of its weights is in place."""
        entries, own = unit.entries, unit.usual
        if not in_place(own):
            entries = self._found((of, name) for of, name, *_ in entries)
            if not entries:  # all are of `functional_call`
                return None
            members = [hook for hook in unit.members if vars(hook.module).get("forward") is hook]
            own = _slots(entries, members)
        if self.last is not None:
            self._after[self.last] = unit
        self.last, ahead = unit, self.ahead
        if unit in ahead:
            while (first := next(iter(ahead))) is not unit:
                self._discard(ahead.pop(first))
            plan = ahead.pop(unit)
            if own is unit.usual:
                return plan
            self._discard(plan)
        self.discard_ahead()
        return self._plan(unit, entries, own)

    def _plan(self, unit: Unit, entries: Sequence[Entry], own: Sequence[Slot]) -> Plan:
        """Takes memory for a call of a unit that swaps these weights; returns what it does."""
        usual = own is unit.usual
        tensors = unit.tensors if usual else _tensors(entries)
        sizes = unit.sizes if usual else self._sizes(tensors)
        places = (*(buffer.take(size) for buffer, size in sizes),)
        at = self._lent(), (*(place.span for place in places),)
        kept = usual and all(place.memory is place.buffer.own for place in places)
        if kept and (found := unit.plans.get(at)) is not None:
            found.ready, found.rows, found.work = False, None, None
            return found
        memory: dict[int, Tensor] = {}
        for place in places:
            here = [i for i in tensors if self.buffers[self._device_of(i)] is place.buffer]
            memory |= zip(here, place.tensors([self._tensors[i] for i in here]), strict=True)
        inside = [(of, name, memory[i]) for of, name, _, i in entries]
        inside += [(of, name, hook.own_forward) for of, name, hook in own[len(entries) :]]
        made = Plan(unit, tensors, places, (*(memory[i] for i in tensors),), own, inside)
        if kept:
            unit.plans[at] = made
        return made

    def _found(self, places: Iterable[tuple[dict[str, Any], str]]) -> list[Entry]:
        """Returns the parameters that are in these places now."""
        there = ((own, name, p := own.get(name), self._position(p)) for own, name in places)
        return [(own, name, p, i) for own, name, p, i in there if i is not None]

    def _position(self, t: Tensor | None) -> int | None:
        """Returns which tensor a module holds; None of another one, as `torch.func.functional_call` puts there."""
        i = self.positions.get(id(t))
        if i is None and t is not None:  # an alias of one is the same
            i = self._addresses.get(storage_key(t))
            return i if i is not None and is_alias(t, self._tensors[i]) else None
        return i

    def _device_of(self, i: int) -> torch.device:
        return self._device or self._tensors[i].device

    def _sizes(self, tensors: Sequence[int]) -> list[tuple[Buffer, int]]:
        """Returns the bytes that tensors take in each buffer, without those that need none."""
        sizes: dict[Buffer, int] = {}
        for i in tensors:
            buffer = self.buffers[self._device_of(i)]
            sizes[buffer] = sizes.get(buffer, 0) + aligned(self._tensors[i])
        return [*sizes.items()]

    def _forward_of(self, unit: Unit) -> Callable[..., Any]:
        """Returns a unit's forward while it is replaced; a compiled model calls it, and leaves it uncompiled."""
        call, is_compiling = self._call, torch.compiler.is_dynamo_compiling

        def forward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return torch.compiler.disable(call)(unit, args, kwargs)
            return call(unit, args, kwargs)

        return forward

    def _call(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns what a module's own forward returns with other tensors in place of its unit's.

        Raises:
            Exception: Of the store, if the module keeps one, or a view.
        """
        own_forward = unit.hook.inner
        plan = self._enter(unit) if self._store.swaps(unit, args, kwargs) else None
        if plan is None:
            return own_forward(*args, **kwargs)
        self._calls.append(plan)
        clean = False
        try:
            try:
                if not plan.ready:
                    written = self._store.fill(plan, args)
                    versions = (next(VERSIONS),) * len(written)
                    torch._C._autograd._unsafe_set_version_counter(written, versions)
                if (before := plan.held) is None:
                    before = plan.held = plan.references()
                put(plan.inside)
                output = own_forward(*args, **kwargs)
            finally:
                plan.put_back()
                self._calls.pop()  # here: `restore` does the rest of what was interrupted
            if plan.references() != before:
                output = without_views(output, plan.storages)
                self._check_references(plan, before)
            else:
                clean = True
        finally:
            if not clean:
                self._forget()
            self._give_back(plan)
        return output

    def _check_references(self, plan: Plan, before: Sequence[int]) -> None:
        """Raises the store's error if something keeps the tensors or views, not counting garbage and frames."""
        if plan.references() != before:
            gc.collect()
            pairs = zip(plan.references(), before, strict=True)
            more = sum(max(0, now - was) for now, was in pairs)
            if more > 0 and more > in_frames(plan.memory, plan.storages):
                raise self._store.view_stays(self.name(plan.unit))


def _slots(entries: Iterable[Entry], members: Iterable[ReplacedForward]) -> list[Slot]:
    hooks = [(vars(hook.module), "forward", hook) for hook in members]
    return [*(entry[:3] for entry in entries), *hooks]


def _tensors(entries: Iterable[Entry]) -> tuple[int, ...]:
    return (*dict.fromkeys(i for *_, i in entries),)


def _nested_bytes(module: nn.Module, sizes: Mapping[nn.Module, int]) -> int:
    """Returns the most bytes that the calls of `module` and its children use."""
    inner = (_nested_bytes(child, sizes) for child in module.children())
    return sizes.get(module, 0) + max(inner, default=0)


def _blocks(model: nn.Module, owners: ParameterOwners) -> dict[nn.Module, nn.Module]:
    """Returns the block of each module that holds weights in one; an embedding, which looks up rows, has none."""
    containers = nn.ModuleList, nn.ModuleDict, *CONTAINERS
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    within = {m for of in lists for m in of.modules() if m is not of}
    blocks = [m for of in lists if of not in within for m in of if not isinstance(m, containers)]
    found: dict[nn.Module, nn.Module] = {}
    for block in blocks:
        for module in block.modules():
            if module in owners and not looks_up(module):
                found.setdefault(module, block)
    return found
