"""restore=streamed: the model computes with displaced copies of its weights, block by block, and θ never moves.

Weights come and go by unit: each member of an outermost `ModuleList` is one, with all modules in it; elsewhere each
module is one. During a probe, a unit's displaced weights are written into a buffer when it is called, by one pass. They
take the parameters' places until the call returns or raises. An embedding is its own unit, and a large one displaces
only the rows that it looks up. The buffer is as large as the largest unit. The losses are bit-identical to those of
`snapshot`.

A module that is called from outside of its unit displaces its own weights, as one without a unit. The first probe sees
which do that. Later ones leave the others' forwards alone; where another module turns out to be called so, its weight
is unreadable, and the loss is measured again as by the first probe.

Offloaded tensors are not copied: they are displaced on the device once `zo.weights.offload` has fetched them, and
updates are deferred until they are fetched again.

A weight that is read outside of the call of its unit would not be displaced. During a probe, parameters of θ
therefore raise an error when they are read (`_Unreadable`), and a unit must not keep a view of its displaced weights.
Aliases of a weight, such as its `.data` or an earlier view, escape this check.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from zo.noise import Move, NoiseKey, TensorTable
from zo.weights.aliasing import is_alias, is_dense, storage_key
from zo.weights.directions import Terms, uncast
from zo.weights.loss import Loss
from zo.weights.offloaded import OffloadedParameter, offload_of
from zo.weights.patching import (
    CONTAINERS,
    VIEW_STAYS,
    ParameterOwners,
    ReplacedForward,
    looked_up,
    looks_up,
    parameter_owners,
    refuse_scripted,
    subclassed,
)
from zo.weights.restore.base import RestoreError, RestorePolicy
from zo.weights.scratch import Scratch, aligned, views_stay, without_views
from zo.weights.tensors import TrainableTensors
from zo.weights.updates import ParameterUpdate, add_rows_, add_to_all_, shared_move, table_of

VALUES = ("item", "tolist", "numpy", "__bool__", "__float__", "__int__")
"""Functions of a tensor that return its values as Python or numpy objects."""

MARKS = ("requires_grad_",)
"""Functions of a tensor that return it and read none of its values; peft's `disable_adapter` calls them."""


SMALL_TABLE = 2**15
"""Values of an embedding that are displaced in less time than some of its rows."""


class _Unreadable(nn.Parameter):
    """A parameter of θ during a probe: its metadata can be read, its values cannot."""

    @classmethod
    def __torch_function__(
        cls, function: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Raises RestoreError where the function returns tensors or values."""
        found = torch._C._disabled_torch_function_impl(function, kinds, args, kwargs or {})
        parts = found if isinstance(found, (tuple, list)) else (found,)
        gives = any(isinstance(part, Tensor) for part in parts) and function.__name__ not in MARKS
        if gives or function.__name__ in VALUES:
            given = (*args, *(kwargs or {}).values())
            names = [cls.names.get(id(t), "a weight") for t in given if isinstance(t, cls)]
            raise _read_past(", ".join(names) or "a weight")
        return found

    names: ClassVar[Mapping[int, str]] = {}
    """Id of each parameter of the model that is probed -> its name."""


def _read_past(name: str) -> RestoreError:
    what = f"{name} is read outside of the call of its module, where it is not displaced"
    return RestoreError(Streamed.name, what, "snapshot")


class Streamed(RestorePolicy):
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
            self._offloaded = {self._offload.position(p): i for i, p in away.items()}
        here = {i: p for i, p in enumerate(space.parameters) if i not in away}
        self._owners = _owners_of(model, here, space.names)
        self._blocks = _blocks(model, self._owners)
        for module, block in self._blocks.items():
            if module is not block:
                self._owners.setdefault(block, []).extend(self._owners[module])
        self._names = {module: name for name, module in model.named_modules()}
        self._sizes = [aligned(t) for t in self.local]
        together = {m: of for m, of in self._owners.items() if self._blocks.get(m, m) is m}
        self._on: dict[torch.device, _Buffer] = {}
        for device in {t.device for t in here.values()}:
            sizes = zip(self._sizes, self.local, strict=True)
            on = [size if t.device == device else 0 for size, t in sizes]
            self._on[device] = _Buffer(_nested_bytes(model, together, on), device)
        self._buffers = [*self._on.values()]
        self.bytes = sum(len(buffer.memory) for buffer in self._buffers)
        self._used = (0,) * len(self._buffers)  # bytes of each that calls have taken
        self._copies: dict[Any, _Copies] = {}
        self._terms: Terms = ()
        self._move: Move | None = None  # the pass that adds the terms, if there is one
        held = [entry for of in self._owners.values() for entry in of]
        parameters = {p: i for m, n, i in held if (p := m._parameters[n]) is not None}
        self._positions = {id(p): i for p, i in parameters.items()}
        names = {id(p): space.names[i] for p, i in parameters.items()}
        self._parameter_names = names
        kinds = [(p, type(p), subclassed(type(p), _Unreadable)) for p in parameters]
        self._guards = [(p, kind, guard) for p, kind, guard in kinds if guard is not None]
        self._addresses = {storage_key(t): i for i, t in here.items()}
        self._readable: bool | None = True  # None while that changes
        self._displaces = False
        self._units: list[_Unit] = []  # whose forwards a probe replaces
        self._watches = True  # whether these are all
        self._calls: list[_Plan] = []  # that are under way

    def begin(self) -> None:
        """Restores the model if an earlier restoration was interrupted."""
        if self._displaces or (self._offload is not None and self._offload.mover is not None):
            self.restore()

    def to(self, terms: Terms) -> None:
        """Has the modules compute with θ + Σ c_j z_j."""
        self.space.stopwatch.counts["weights"] += bool(terms)
        self._terms, self._move = terms, shared_move(terms, self.space.engine)
        if self._offload is not None:
            self._offload.displace_by(self if terms else None)
        if not self._displaces:
            self._displaces = True
            if not self._units:
                self._watch(True)
            for unit in self._units:
                unit.hook.plain = unit.module.__dict__.get("forward")
                unit.hook.put()
        self._make_readable(not terms)

    def losses(self, loss: Loss, n: int) -> list[float]:
        """As `Probe.losses`; measures again where a module is called by itself that was not before."""
        terms = self._terms
        try:
            return super().losses(loss, n)
        except RestoreError:
            if self._watches:
                raise
            self.restore()
            self._watch(True)
            self.to(terms)
            return super().losses(loss, n)

    def restore(self) -> None:
        """Removes all patches of the model, also after an interrupted call of a module."""
        self._terms = ()
        if self._offload is not None:
            self._offload.displace_by(None)
        for plan in self._calls:
            for held, name, parameter, _ in plan.entries:
                held[name] = parameter
        self._calls.clear()
        self._used = (0,) * len(self._buffers)
        self._make_readable(True)
        for unit in self._units:
            unit.hook.take_back()
        self._displaces = False
        if self._watches and any(unit.called_alone for unit in self._units):
            self._watch(False)

    def _make_readable(self, readable: bool) -> None:
        """Allows or refuses reads of θ's parameters outside of the calls of their modules."""
        if readable != self._readable:
            self._readable = None
            _Unreadable.names = self._parameter_names
            for p, plain, guard in self._guards:
                was, to = (guard, plain) if readable else (plain, guard)
                if p.__class__ is was:
                    p.__class__ = to  # type: ignore[assignment]
            self._readable = readable

    @cached_property
    def _all_units(self) -> list[_Unit]:
        """The modules that displace weights when they are called."""
        made = {m: _Unit(m, self._blocks.get(m, m) is not m) for m in self._owners}
        for module, unit in made.items():
            unit.hook = ReplacedForward.of(module, self._forward_of(unit))
            held = self._owners[module]
            unit.places = [(cast(Any, m._parameters), n, m._parameters[n]) for m, n, _ in held]
            if unit.in_block:
                made[self._blocks[module]].members.append(unit)
        return [*made.values()]

    def _forward_of(self, unit: _Unit) -> Callable[..., Any]:
        """Returns a module's forward during a probe."""
        call, is_compiling = self._call, torch.compiler.is_dynamo_compiling
        uncompiled = call
        if "torch._dynamo" in sys.modules:  # a compiled loss calls it, and leaves it uncompiled
            uncompiled = torch.compiler.disable(call)

        def forward(*args: Any, **kwargs: Any) -> Any:
            return (uncompiled if is_compiling() else call)(unit, args, kwargs)

        return forward

    def _watch(self, watches: bool) -> None:
        """Replaces the forwards of all modules, or no longer those that only their blocks call."""
        units = [u for u in self._all_units if watches or u.called_alone or not u.in_block]
        self._watches, self._units = watches, units
        for unit in units:
            unit.lifted = [(m.module.__dict__, m.hook) for m in unit.members if m in units]

    def _call(self, unit: _Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns what a module's own forward returns with displaced tensors in place of its unit's."""
        own_forward = unit.hook.inner
        if not self._terms:
            return own_forward(*args, **kwargs)
        unit.called_alone = True
        plan, buffers = self._plan_of(unit), self._buffers
        entries, lifted = plan.entries, unit.lifted
        views = [buffer.views() for buffer in buffers]
        self._used = plan.after
        self._calls.append(plan)
        try:
            self._displace(plan, looked_up(unit.module, args) if unit.looks_up else None)
            # `data`, so that each call has tensors of its own, whose count shows views that stay.
            tensors = [t.data for t in plan.memory]
            for held, name, _, k in entries:
                held[name] = tensors[k]
            for _, hook in lifted:
                hook.take_back()
            output = own_forward(*args, **kwargs)
        finally:
            for held, name, parameter, _ in entries:
                held[name] = parameter
            for own, hook in lifted:
                if own.get("forward") is hook.plain:
                    hook.put()
            self._used = plan.before
            self._calls.pop()
        del tensors
        if views != [buffer.views() for buffer in buffers]:
            marks = dict[Scratch, int](zip(buffers, views, strict=True))
            output = without_views(output, marks)
            if views_stay(marks):
                raise RestoreError(self.name, self._named(unit.module) + VIEW_STAYS, "snapshot")
        return output

    def _named(self, module: nn.Module) -> str:
        return f"{self._names[module] or 'the model'} ({type(module).__name__})"

    def _plan_of(self, unit: _Unit) -> _Plan:
        """Returns what a call of a unit does above what calls around it have in the buffers."""
        before = self._used
        plan = unit.plans.get(before)
        if plan is not None:
            for own, name, parameter, _ in plan.entries:
                if own.get(name) is not parameter:
                    break
            else:
                return plan
        places = [(own, name, own.get(name)) for own, name, _ in unit.places]
        found = [(own, name, p, self._position(p)) for own, name, p in places]
        tensors = tuple(dict.fromkeys(i for *_, i in found if i is not None))
        index = {i: k for k, i in enumerate(tensors)}
        entries = [(own, name, p, index[i]) for own, name, p, i in found if i is not None]
        plan = _Plan(entries, tensors, *self._copies_of(tensors, before), before)
        same = all(p is of for (*_, p), (*_, of) in zip(places, unit.places, strict=True))
        if same and (tensors, before) in self._copies:
            unit.plans[before] = plan
        return plan

    @torch.inference_mode(False)  # else passes outside of it could not write the copies
    def _copies_of(self, tensors: tuple[int, ...], before: tuple[int, ...]) -> _Copies:
        """Returns places for displaced copies of tensors in the buffers, from these bytes on."""
        if (found := self._copies.get((tensors, before))) is None:
            thetas = [self.local[i] for i in tensors]
            for buffer, at in zip(self._buffers, before, strict=True):
                buffer.used = at
            taken = [self._on[t.device].take(t, aligned(t)) for t in thetas]
            memory, written = [of for of, _ in taken], [of for _, of in taken]
            table = table_of(self.space.engine, written, thetas, tensors)
            found = memory, written, thetas, table, tuple(b.used for b in self._buffers)
            if all(buffer.used <= len(buffer.memory) for buffer in self._buffers):
                self._copies[tensors, before] = found
                for t in thetas:
                    self._on[t.device].places += 1
        return found

    def _displace(self, plan: _Plan, rows: Tensor | None) -> None:
        """Writes tensors, displaced, or of one table the rows with these indices, (r,)."""
        if not plan.tensors:
            return
        with self.space.stopwatch.running("weights", 0):
            if rows is None and plan.table is not None and self._move is not None:
                plan.table.add_(self._move)
                return
            written, thetas, tensors = plan.written, plan.thetas, plan.tensors
            with uncast(thetas[0].device):
                if rows is None:
                    add_to_all_(written, thetas, tensors, self._terms, None)
                else:
                    on = rows.to(thetas[0].device)
                    add_rows_(written[0], thetas[0], tensors[0], self._terms, on)

    def _position(self, t: Tensor | None) -> int | None:
        """Returns which tensor of θ a module holds; None of another one, as `torch.func.functional_call` puts there."""
        i = self._positions.get(id(t))
        if i is None and t is not None:  # an alias is θ, too
            i = self._addresses.get(storage_key(t))
            return i if i is not None and is_alias(t, self.local[i]) else None
        return i

    def displace(self, i: int, p: Tensor, rows: Tensor | None) -> None:
        """Displaces an offloaded tensor on the device, if it is of θ."""
        if (position := self._offloaded.get(i)) is not None:
            self._displace(_Plan([], (position,), [], [p], [p], None, (), ()), rows)

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


_Copies: TypeAlias = tuple[
    list[Tensor], list[Tensor], list[Tensor], TensorTable | None, tuple[int, ...]
]
"""Of a `_Plan`: its memory, written, thetas, table and after."""


class _Plan(NamedTuple):
    """What a call of a unit swaps and writes.

    Attributes:
        entries: The parameters: the dictionary that each is in, its name there, itself, and its place in `tensors`.
        tensors: Positions of the tensors.
        memory: Places of their displaced copies, views of the buffers' `memory`.
        written: The same places, of the buffers' `written`.
        thetas: The tensors.
        table: Of the passes that write them, if there is one.
        after: `used` of every buffer with them.
        before: The same without them.
    """

    entries: list[tuple[dict[str, Any], str, Tensor | None, int]]
    tensors: tuple[int, ...]
    memory: list[Tensor]
    written: list[Tensor]
    thetas: list[Tensor]
    table: TensorTable | None
    after: tuple[int, ...]
    before: tuple[int, ...]


class _Unit:
    """A module whose call displaces weights.

    Args:
        module: The module.
        in_block: Whether it is a part of a block, whose call displaces its weights, too.

    Attributes:
        hook: Its forward during a probe.
        looks_up: Whether only the rows that it looks up are displaced.
        called_alone: Whether it was called otherwise than by its block.
        places: Its weights: the dictionary that each is in, its name there, and the parameter.
        members: The other modules of a block.
        lifted: Replaced forwards of members, which a call takes back for its time, and the dictionaries they are in.
        plans: Bytes in the buffers -> what a call above them does.
    """

    hook: ReplacedForward
    called_alone = False

    def __init__(self, module: nn.Module, in_block: bool):
        self.module, self.in_block = module, in_block
        self.looks_up = looks_up(module) and cast(Tensor, module.weight).numel() > SMALL_TABLE
        self.places: list[tuple[dict[str, Any], str, Any]] = []
        self.members: list[_Unit] = []
        self.lifted: list[tuple[dict[str, Any], ReplacedForward]] = []
        self.plans: dict[tuple[int, ...], _Plan] = {}


class _Buffer(Scratch):
    """Memory for displaced weights on one device, a stack.

    Attributes:
        used: Bytes of the stack while places are taken.
        places: How many views of `memory` are kept as places of copies; `views` leaves them out.
    """

    used, places = 0, 0

    def views(self) -> int:
        """As `Scratch.views`."""
        return torch._C._storage_Use_Count(self._address) - self.places

    def take(self, like: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Pushes a tensor like another one; returns it as views of `memory` and of `written`."""
        begin = self.used
        self.used += size
        if self.used > len(self.memory):  # modules call one another without containing one another
            alone = torch.empty_like(like)
            return alone, alone
        return self.part(like, begin)


def _nested_bytes(module: nn.Module, owners: ParameterOwners, sizes: Sequence[int]) -> int:
    """Returns the most bytes that the calls of `module` and its children use."""
    own = {i for *_, i in owners.get(module, [])}
    inner = (_nested_bytes(child, owners, sizes) for child in module.children())
    return sum(sizes[i] for i in own) + max(inner, default=0)


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
            raise ValueError(f"restore=streamed: {path}.{name} is a view of another weight")
    if missing := {*tensors} - {i for of in held.values() for *_, i in of}:
        raise ValueError(f"restore=streamed: no module of the model holds {names[min(missing)]}")
    return held


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
