"""restore=streamed: the model computes with displaced copies of its weights, block by block, and θ never moves.

Weights come and go by unit: each member of an outermost `ModuleList` is one, with all modules in it; elsewhere each
module is one. During a probe, a unit's displaced weights are written into a buffer when it is called, by one pass. They
take the parameters' places until the call returns or raises. An embedding is its own unit and displaces only the rows
that it looks up. The buffer is as large as the largest unit. The losses are bit-identical to those of `snapshot`.

A module that is called from outside of its unit displaces its own weights, as one without a unit.

Offloaded tensors are not copied: they are displaced on the device once `zo.weights.offload` has fetched them, and
updates are deferred until they are fetched again.

A weight that is read outside of the call of its unit would not be displaced. During a probe, parameters of θ
therefore raise an error when they are read (`_Unreadable`), and a unit must not keep a view of its displaced weights.
Aliases of a weight, such as its `.data` or an earlier view, escape this check.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from zo.noise import NoiseKey, TensorTable
from zo.weights.aliasing import is_alias, is_dense, storage_key
from zo.weights.directions import Terms, uncast
from zo.weights.offloaded import OffloadedParameter, offload_of
from zo.weights.patching import (
    CONTAINERS,
    ParameterOwners,
    ReplacedForward,
    SwappedCalls,
    ViewStaysError,
    looked_up,
    looks_up,
    parameter_owners,
    refuse_scripted,
    subclassed,
)
from zo.weights.restore.base import RestoreError, RestorePolicy
from zo.weights.scratch import Scratch, aligned
from zo.weights.tensors import TrainableTensors
from zo.weights.updates import ParameterUpdate, add_rows_, add_to_all_, table_of

VALUES = ("item", "tolist", "numpy", "__bool__", "__float__", "__int__")
"""Functions of a tensor that return its values as Python or numpy objects."""

MARKS = ("requires_grad_",)
"""Functions of a tensor that return it and read none of its values; peft's `disable_adapter` calls them."""


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
            names = [t.name_in_model for t in given if isinstance(t, cls)]
            raise _read_past(", ".join(names) or "a weight")
        return found

    name_in_model: str
    plain: ClassVar[type[nn.Parameter]] = nn.Parameter


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
        self._buffers: dict[torch.device, _Buffer] = {}
        for device in {t.device for t in here.values()}:
            sizes = zip(self._sizes, self.local, strict=True)
            on = [size if t.device == device else 0 for size, t in sizes]
            self._buffers[device] = _Buffer(_nested_bytes(model, self._owners, on), device)
        self.bytes = sum(len(buffer.memory) for buffer in self._buffers.values())
        self._swapped = SwappedCalls()
        self._inside = set[nn.Module]()  # blocks in a call
        self._copies: dict[tuple[Any, ...], _Copies] = {}
        self._terms: Terms = ()
        entries = {entry: None for of in self._owners.values() for entry in of}
        self._places = [(cast(dict[str, Any], m._parameters), n) for m, n, _ in entries]
        held = [(p, i) for m, n, i in entries if (p := m._parameters[n]) is not None]
        self._parameters = {p: space.names[i] for p, i in held}
        self._positions = {id(p): i for p, i in held}  # hashing one during a probe is slow
        self._addresses = {storage_key(t): i for i, t in here.items()}
        self._forwards: dict[nn.Module, ReplacedForward] = {}  # what `restore` takes back
        self._own: list[tuple[Any, str, Any]] = []  # dictionary, name in it, parameter

    def begin(self) -> None:
        """Restores the model if an earlier restoration was interrupted."""
        if self._forwards or (self._offload is not None and self._offload.mover is not None):
            self.restore()

    def to(self, terms: Terms) -> None:
        """Has the modules compute with θ + Σ c_j z_j."""
        self.space.stopwatch.counts["weights"] += bool(terms)
        self._terms = terms
        if self._offload is not None:
            self._offload.displace_by(self if terms else None)
        if not self._forwards:
            self._own = [(held, name, held[name]) for held, name in self._places]
            self._forwards = {m: ReplacedForward.of(m, f) for m, f in self._replacements.items()}
            for forward in self._forwards.values():
                forward.put()
        self._make_readable(not terms)

    def restore(self) -> None:
        """Removes all patches of the model, also after an interrupted call of a module."""
        self._terms = ()
        if self._offload is not None:
            self._offload.displace_by(None)
        for held, name, parameter in self._own:
            held[name] = parameter
        self._swapped.tensors.clear()
        self._inside.clear()
        for buffer in self._buffers.values():
            buffer.used = 0
        self._make_readable(True)
        for forward in self._forwards.values():
            forward.take_back()
        self._forwards, self._own = {}, []

    def _make_readable(self, readable: bool) -> None:
        """Allows or refuses reads of θ's parameters outside of the calls of their modules."""
        for p, name in self._parameters.items():
            kind = type(p)
            if not readable and (guarded := subclassed(kind, _Unreadable)) is not None:
                p.__dict__["name_in_model"] = name
                p.__class__ = guarded
            elif readable and issubclass(kind, _Unreadable):
                p.__class__ = kind.plain  # type: ignore[assignment]
                p.__dict__.pop("name_in_model", None)

    @cached_property
    def _replacements(self) -> dict[nn.Module, Callable[..., Any]]:
        """The forward of each module during a probe."""
        return {module: self._replacement(module) for module in self._owners}

    def _replacement(self, module: nn.Module) -> Callable[..., Any]:
        """Returns a forward that is the module's own within a call of its block, which has displaced the weights."""
        block, inside, is_compiling = (
            self._blocks.get(module, module),
            self._inside,
            torch.compiler.is_compiling,
        )
        uncompiled = self._call
        if "torch._dynamo" in sys.modules:  # a compiled loss calls it, and leaves it uncompiled
            uncompiled = torch.compiler.disable(uncompiled)

        def forward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return uncompiled(module, *args, **kwargs)
            if block in inside:
                return self._forwards[module].inner(*args, **kwargs)
            return self._call(module, *args, **kwargs)

        return forward

    def _call(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Returns what the module's own forward returns with displaced tensors in place of its unit's."""
        forward, block = self._forwards[module].inner, self._blocks.get(module, module)
        if not self._terms or block in self._inside:
            return forward(*args, **kwargs)
        places = ((cast(dict[str, Any], m._parameters), n) for m, n, _ in self._owners[module])
        found = [(own, name, self._position(own.get(name))) for own, name in places]
        entries = [(own, name, i) for own, name, i in found if i is not None]
        swapped = self._swapped.tensors
        new = tuple(dict.fromkeys(i for *_, i in entries if i not in swapped))
        used = [(buffer, buffer.used) for buffer in self._buffers.values()]
        try:
            copies = self._copies_of(new)
            views: dict[Scratch, int] = {buffer: buffer.views() for buffer, _ in used}
            self._displace(copies, new, looked_up(module, args))
            # `data`, so that each call has tensors of its own, whose count shows views that stay.
            tensors = {i: t.data for i, t in zip(new, copies.memory, strict=True)}
            if module is block:
                self._inside.add(module)
            compute = partial(forward, *args, **kwargs)
            return self._swapped.call(entries, compute, tensors.pop, views)
        except ViewStaysError as error:
            name = f"{self._names[module] or 'the model'} ({type(module).__name__})"
            raise RestoreError(self.name, f"{name} {error}", "snapshot") from None
        finally:
            self._inside.discard(module)
            for buffer, at in used:
                buffer.used = at

    @torch.inference_mode(False)  # else passes outside of it could not write the copies
    def _copies_of(self, tensors: tuple[int, ...]) -> _Copies:
        """Takes places for displaced copies of tensors in the buffers."""
        buffers = self._buffers.values()
        key = tensors, *(buffer.used for buffer in buffers)
        if (found := self._copies.get(key)) is None:
            thetas = [self.local[i] for i in tensors]
            taken = [self._buffers[t.device].take(t, aligned(t)) for t in thetas]
            memory, written = [of for of, _ in taken], [of for _, of in taken]
            table = table_of(self.space.engine, written, thetas, tensors)
            found = _Copies(memory, written, thetas, table, tuple(b.used for b in buffers))
            if all(buffer.used <= len(buffer.memory) for buffer in buffers):
                self._copies[key] = found
                for t in thetas:
                    self._buffers[t.device].places += 1
        for buffer, at in zip(buffers, found.used, strict=True):
            buffer.used = at
        return found

    def _displace(self, copies: _Copies, tensors: tuple[int, ...], rows: Tensor | None) -> None:
        """Writes tensors, displaced, or of one table the rows with these indices, (r,)."""
        if not tensors:
            return
        written, thetas, terms = copies.written, copies.thetas, self._terms
        with self.space.stopwatch.running("weights", 0), uncast(thetas[0].device):
            if rows is None:
                add_to_all_(written, thetas, tensors, terms, copies.table)
            else:
                on = rows.to(thetas[0].device)
                add_rows_(written[0], thetas[0], tensors[0], terms, on)

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
            self._displace(_Copies((), (p,), (p,), None, ()), (position,), rows)

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


class _Copies(NamedTuple):
    """The places of displaced copies of tensors.

    Attributes:
        memory: Views of the buffers' `memory`.
        written: The same places, of the buffers' `written`.
        thetas: The tensors.
        table: Of the passes that write them, if there is one.
        used: `used` of every buffer with them.
    """

    memory: Sequence[Tensor]
    written: Sequence[Tensor]
    thetas: Sequence[Tensor]
    table: TensorTable | None
    used: tuple[int, ...]


class _Buffer(Scratch):
    """Memory for displaced weights on one device, a stack.

    Attributes:
        used: Bytes of the stack.
        places: How many views of `memory` are kept as places of copies; `views` leaves them out.
    """

    used, places = 0, 0

    def views(self) -> int:
        """As `Scratch.views`."""
        return super().views() - self.places

    def take(self, like: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Pushes a tensor like another one; returns it as views of `memory` and of `written`."""
        begin = self.used
        self.used += size
        if self.used > len(self.memory):  # modules call one another without containing one another
            alone = torch.empty_like(like)
            return alone, alone
        return self.part(like, begin)


def _nested_bytes(
    module: nn.Module,
    owners: ParameterOwners,
    sizes: Sequence[int],
    outer: frozenset[int] = frozenset(),
) -> int:
    """Returns the most bytes that the calls of `module` and its children use, within modules that hold `outer`."""
    own = {i for *_, i in owners.get(module, [])} - outer
    inner = (_nested_bytes(child, owners, sizes, outer | own) for child in module.children())
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
