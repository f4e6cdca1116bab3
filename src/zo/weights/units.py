"""Calls of a model's units with other tensors in place of their weights.

A unit is what a model calls as a whole: each member of an outermost `ModuleList`, with all modules in it, which is a
block; elsewhere each module that holds weights. Before the call of a unit, a store puts the values that it computes
with into a buffer, by one pass or one transfer. They take the parameters' places until the call returns or raises. The
device itself is the store under `restore=streamed`; the host's memory and files are those of `zo.weights.offload`.

A module that is called from outside of its block is a unit of its own. An embedding always is one, since only the rows
that it looks up are needed.

A unit must not keep a view of the tensors that were put in place, and gets copies of those that it returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from zo.noise import TensorTable
from zo.weights.aliasing import is_alias, storage_key
from zo.weights.patching import CONTAINERS, ParameterOwners, ReplacedForward, looks_up
from zo.weights.scratch import Buffer, Place, aligned, without_views

VERSIONS = count(2**31)
"""`_version` of the tensors of each call, unlike θ's: layers may keep what they computed of a weight while it stays."""

Entry: TypeAlias = "tuple[dict[str, Any], str, Tensor | None, int]"
"""A parameter that is swapped: the dictionary that it is in, its name there, itself, and its tensor's position."""


@dataclass(eq=False)
class Plan:
    """What a call of a unit swaps.

    Attributes:
        entries: The parameters.
        tensors: Positions of the tensors.
        places: Their memory.
        memory: The tensors that are put in place, views of it.
        written: The same, to be written.
        table: Of passes that write them, if the store has one.
        versions: Of the parameters when the store read them.
        rows: Of an embedding, those that are there, (r,); None is all.
        work: The transfer that fills the memory.
    """

    entries: list[Entry]
    tensors: tuple[int, ...]
    places: tuple[Place, ...]
    memory: list[Tensor]
    written: list[Tensor]
    table: TensorTable | None = None
    versions: list[int] = field(default_factory=list)
    rows: Tensor | None = None
    work: Future[Any] | None = None


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
        members: Of a block, the dictionaries of the other modules, and their hooks, which a call lifts.
        plans: What calls do, by the places that they take.
    """

    hook: ReplacedForward

    def __init__(self, module: nn.Module, entries: list[Entry], block: Unit | None):
        self.module, self.block, self.looks_up = module, block, looks_up(module)
        self.entries, self.tensors = entries, _tensors(entries)
        self.sizes: list[tuple[Buffer, int]] = []
        self.members: list[tuple[dict[str, Any], ReplacedForward]] = []
        self.plans: dict[tuple[Place, ...], Plan] = {}


class Store(ABC):
    """Where the values are that units compute with."""

    @abstractmethod
    def enter(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan | None:
        """Returns what a call of a unit swaps, as `UnitCalls.plan`; None is nothing."""

    @abstractmethod
    def fill(self, unit: Unit, plan: Plan) -> None:
        """Writes the values into a plan's memory."""

    @abstractmethod
    def view_stays(self, unit: str) -> Exception:
        """Returns the error for a unit that keeps a view."""


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
                unit.block.members.append((unit.module.__dict__, unit.hook))
        for buffer in self.buffers.values():
            whole = [unit for unit in self.units if unit.block is None]
            sizes = {unit.module: dict(unit.sizes).get(buffer, 0) for unit in whole}
            buffer.size = _nested_bytes(model, sizes)
        self._calls: list[tuple[Unit, Plan]] = []  # that are under way

    def install(self) -> None:
        """Replaces the units' forwards."""
        for unit in self.units:
            unit.hook.put()

    def remove(self) -> None:
        """Restores the units' own forwards."""
        for unit in self.units:
            unit.hook.take_back()

    def restore(self, ahead: Iterable[Plan] = ()) -> None:
        """Ends calls that were interrupted, and gives back all memory but that of plans that are filled ahead."""
        for unit, plan in self._calls:
            _put_back(unit, plan)
        self._calls.clear()
        kept = [place for plan in ahead for place in plan.places]
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

    def entries(self, unit: Unit) -> list[Entry]:
        """Returns the weights of a unit that are in place: its `entries`, unless others are in some of their places."""
        for held, name, parameter, _ in unit.entries:
            if held.get(name) is not parameter:
                return self._found((own, name) for own, name, *_ in unit.entries)
        return unit.entries

    def plan(self, unit: Unit, entries: list[Entry]) -> Plan:
        """Takes memory for a call of a unit that swaps these weights; returns what it does."""
        usual = entries is unit.entries
        tensors = unit.tensors if usual else _tensors(entries)
        sizes = unit.sizes if usual else self._sizes(tensors)
        places = (*(buffer.take(size) for buffer, size in sizes),)
        if (found := unit.plans.get(places)) is not None and usual:
            found.rows, found.work = None, None
            return found
        kept = usual and all(place.scratch is place.buffer.own for place in places)
        at, memory, written = {of.buffer: of.begin for of in places}, list[Tensor](), list[Tensor]()
        scratch = {of.buffer: of.scratch for of in places}
        with torch.inference_mode(False):  # else passes outside of it could not write the memory
            for i in tensors:
                buffer, like = self.buffers[self._device_of(i)], self._tensors[i]
                used, passes = scratch[buffer].part(like, at[buffer])
                at[buffer] += aligned(like)
                scratch[buffer].places += kept
                memory.append(used)
                written.append(passes)
        found = Plan(entries, tensors, places, memory, written)
        if kept:
            unit.plans[places] = found
        return found

    def give_back(self, plan: Plan) -> None:
        """Gives a plan's memory back."""
        for place in plan.places:
            place.buffer.give_back(place)

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
            Exception: Of the store, if the module keeps a view of one.
        """
        own_forward = unit.hook.inner
        plan = self._store.enter(unit, args, kwargs)
        if plan is None:
            return own_forward(*args, **kwargs)
        views = [place.scratch.views() for place in plan.places]
        self._calls.append((unit, plan))
        try:
            try:
                self._store.fill(unit, plan)
                # `data`, so that each call has tensors of its own, whose count shows views that stay.
                tensors = {i: t.data for i, t in zip(plan.tensors, plan.memory, strict=True)}
                version = (next(VERSIONS),) * len(tensors)
                torch._C._autograd._unsafe_set_version_counter((*tensors.values(),), version)
                for held, name, _, i in plan.entries:
                    held[name] = tensors[i]
                for own, hook in unit.members:
                    if own.get("forward") is hook:
                        own["forward"] = hook.own_forward  # to delete it would take longer
                output = own_forward(*args, **kwargs)
            finally:
                _put_back(unit, plan)
                self._calls.pop()  # here: `restore` does the rest of what was interrupted
            del tensors
            if views != [place.scratch.views() for place in plan.places]:
                marks = {p.scratch: n for p, n in zip(plan.places, views, strict=True)}
                output = without_views(output, marks)
                if any(of.views() > n and of.keeps(n) for of, n in marks.items()):
                    raise self._store.view_stays(self.name(unit))
        finally:
            self.give_back(plan)
        return output


def _put_back(unit: Unit, plan: Plan) -> None:
    """Puts a unit's own parameters, and its members' hooks, back in place."""
    for held, name, parameter, _ in plan.entries:
        held[name] = parameter
    for own, hook in unit.members:
        if own.get("forward") is hook.own_forward:
            own["forward"] = hook


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
