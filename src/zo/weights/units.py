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
from itertools import count, repeat
from operator import attrgetter, delitem, is_, methodcaller, setitem
from sys import getrefcount
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from zo.noise import TensorTable
from zo.weights.aliasing import is_alias, storage_key
from zo.weights.patching import CONTAINERS, ParameterOwners, ReplacedForward, looks_up
from zo.weights.scratch import Buffer, Place, aligned, in_frames, without_views

VERSIONS = count(2**31)
"""`_version` of the tensors of each call, unlike θ's: layers may keep what they computed of a weight while it stays."""

Entry: TypeAlias = "tuple[dict[str, Any], str, Any, int]"
"""A parameter that is swapped: the dictionary that it is in, its name there, itself, and its tensor's position."""

FORWARD = repeat("forward")

_uses = methodcaller("_use_count")


class Swap(NamedTuple):
    """What a call puts in other places: parameters, and of a block the hooks of its modules, which it lifts.

    Each function is one call for all, since a GPU waits for what is done for each.

    Attributes:
        dicts: The modules' dictionaries.
        keys: The names there.
        own: What is there outside of the call.
    """

    dicts: Sequence[dict[str, Any]]
    keys: Sequence[str]
    own: Sequence[Any]

    @classmethod
    def of(cls, entries: Sequence[Entry], members: Sequence[ReplacedForward]) -> Swap:
        """Returns the swap of parameters and hooks."""
        dicts = [of for of, *_ in entries] + [vars(hook.module) for hook in members]
        keys = [name for _, name, *_ in entries] + ["forward"] * len(members)
        return cls(dicts, keys, [*(p for *_, p, _ in entries), *members])

    def holds(self, values: Sequence[Any]) -> bool:
        """Returns whether these objects are in place."""
        return all(map(is_, map(dict.get, self.dicts, self.keys), values))

    def put(self, values: Sequence[Any]) -> None:
        """Puts these objects in place; `setitem` returns None."""
        any(map(setitem, self.dicts, self.keys, values))

    def put_back(self, inside: Sequence[Any]) -> None:
        """Puts the own objects back, but no hook in the place of another forward."""
        if self.holds(inside):
            self.put(self.own)
            return
        for held, name, own, other in zip(*self, inside, strict=True):
            if not isinstance(own, ReplacedForward) or held.get(name) is other:
                held[name] = own


@dataclass(eq=False)
class Plan:
    """What a call of a unit swaps.

    Attributes:
        unit: The unit.
        tensors: Positions of the tensors.
        places: Their memory.
        memory: The tensors that are put in place, in that memory.
        swap: Where.
        inside: What is there during the call.
        ready: Whether the memory has the values of all tensors.
        group: Plans that are written by one pass, of which this is the first, and their table.
        versions: Of the parameters when the store read them.
        rows: Of an embedding, those that are there, (r,); None is all.
        work: The transfer that fills the memory.
        storages: Of the memory, by address.
    """

    unit: Unit
    tensors: tuple[int, ...]
    places: tuple[Place, ...]
    memory: tuple[Tensor, ...]
    swap: Swap
    inside: Sequence[Any]
    ready: bool = False
    group: tuple[list[Plan], TensorTable] | None = None
    versions: list[int] = field(default_factory=list)
    rows: Tensor | None = None
    work: Future[Any] | None = None

    def __post_init__(self) -> None:
        self.storages = {t.untyped_storage()._cdata for t in self.memory}

    def put(self) -> None:
        """Puts the tensors in place, as if they were written now."""
        version = (next(VERSIONS),) * len(self.memory)
        torch._C._autograd._unsafe_set_version_counter(self.memory, version)
        self.swap.put(self.inside)

    def references(self) -> list[int]:
        """Counts the tensors' views, and references to them in Python and in C++."""
        views = map(torch._C._storage_Use_Count, self.storages)
        return [*views, *map(getrefcount, self.memory), *map(_uses, self.memory)]


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
        usual: What its call swaps, unless somebody else has put something there.
        plans: Of that, by the places that it takes.
    """

    hook: ReplacedForward
    usual: Swap

    def __init__(self, module: nn.Module, entries: list[Entry], block: Unit | None):
        self.module, self.block, self.looks_up = module, block, looks_up(module)
        self.entries, self.tensors = entries, _tensors(entries)
        self.sizes: list[tuple[Buffer, int]] = []
        self.members: list[ReplacedForward] = []
        self.plans: dict[tuple[Place, ...], Plan] = {}

    @property
    def bytes(self) -> int:
        """Bytes that its weights take."""
        return sum(size for _, size in self.sizes)


class Store(ABC):
    """Where the values are that units compute with."""

    @abstractmethod
    def swaps(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Returns whether a call of a unit swaps weights."""

    @abstractmethod
    def fill(self, plan: Plan, args: tuple[Any, ...]) -> None:
        """Has the values of a call in its plan's memory, and may fill plans of `UnitCalls.extend`."""

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
            unit.usual = Swap.of(unit.entries, unit.members)
        self._own = [vars(unit.module) for unit in self.units]
        self._hooks = [unit.hook for unit in self.units]
        self._replaced: list[Any] = []  # the forwards under the hooks, and those of their classes
        self._calls: list[Plan] = []  # that are under way
        self._after: dict[Unit, Unit] = {}  # unit -> the one called after it
        self.last: Unit | None = None
        self.ahead: dict[Unit, Plan] = {}

    def install(self) -> None:
        """Replaces the units' forwards."""
        classes = map(attrgetter("forward"), map(type, (unit.module for unit in self.units)))
        forwards = [*map(dict.get, self._own, FORWARD), *classes]
        if forwards == self._replaced:
            any(map(setitem, self._own, FORWARD, self._hooks))
            return
        for unit in self.units:
            unit.hook.put()
            unit.plans.clear()
        self._replaced = forwards

    def remove(self) -> None:
        """Restores the units' own forwards."""
        bare = all(map(is_, self._replaced[: len(self._own)], repeat(None)))
        if bare and [*map(dict.get, self._own, FORWARD)] == self._hooks:
            any(map(delitem, self._own, FORWARD))
            return
        for hook in self._hooks:
            hook.take_back()

    def restore(self) -> None:
        """Ends calls that were interrupted, and gives back all memory but that of plans ahead."""
        for plan in self._calls:
            plan.swap.put_back(plan.inside)
        self._calls.clear()
        kept = [place for plan in self.ahead.values() for place in plan.places]
        for buffer in self.buffers.values():
            buffer.taken = sorted(place[2:] for place in kept if place.scratch is buffer.own)

    def release(self) -> None:
        """Frees the buffers' memory, unless some of it is taken."""
        if not any(buffer.taken for buffer in self.buffers.values()):
            for unit in self.units:
                unit.plans.clear()
            for buffer in self.buffers.values():
                buffer.own = None

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
        entries, swap = unit.entries, unit.usual
        if not swap.holds(swap.own):
            entries = self._found((own, name) for own, name, *_ in entries)
            if not entries:  # all are of `functional_call`
                return None
            members = [hook for hook in unit.members if vars(hook.module).get("forward") is hook]
            swap = Swap.of(entries, members)
        if self.last is not None:
            self._after[self.last] = unit
        self.last, ahead = unit, self.ahead
        while unit in ahead and (first := next(iter(ahead))) is not unit:
            self._discard(ahead.pop(first))
        plan = ahead.pop(unit, None)
        if plan is not None and swap is not unit.usual:
            self._discard(plan)
            plan = None
        if plan is None:
            self.discard_ahead()
            plan = self._plan(unit, entries, swap)
        return plan

    def _plan(self, unit: Unit, entries: Sequence[Entry], swap: Swap) -> Plan:
        """Takes memory for a call of a unit that swaps these weights; returns what it does."""
        usual = swap is unit.usual
        tensors = unit.tensors if usual else _tensors(entries)
        sizes = unit.sizes if usual else self._sizes(tensors)
        places = (*(buffer.take(size) for buffer, size in sizes),)
        if usual and (found := unit.plans.get(places)) is not None:
            found.ready, found.rows, found.work = False, None, None
            return found
        memory: dict[int, Tensor] = {}
        for place in places:
            own = [i for i in tensors if self.buffers[self._device_of(i)] is place.buffer]
            memory |= zip(own, place.tensors([self._tensors[i] for i in own]), strict=True)
        inside = [memory[i] for *_, i in entries]
        inside += [hook.own_forward for hook in swap.own[len(entries) :]]
        of = (*(memory[i] for i in tensors),)
        made = Plan(unit, tensors, places, of, swap, inside)
        if usual and all(place.scratch is place.buffer.own for place in places):
            unit.plans[places] = made
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
        try:
            try:
                self._store.fill(plan, args)
                before = plan.references()
                plan.put()
                output = own_forward(*args, **kwargs)
            finally:
                plan.swap.put_back(plan.inside)
                self._calls.pop()  # here: `restore` does the rest of what was interrupted
            if plan.references() != before:
                output = without_views(output, plan.storages)
                self._check_references(plan, before)
        finally:
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
