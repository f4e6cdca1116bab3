"""Patches of a model: replaced forwards, parameters swapped for a call, and parameters that are θ when they are read.

Under `restore=factors` a layer computes with W + A Vᵀ while its parameter holds W. Under offload a deferred update may
be missing from the parameter. Other readers (`state_dict`, `save_pretrained`, a moving average, `load_state_dict`) get
θ: a guarded parameter is brought up to date before it is read.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MethodType
from typing import Any, ClassVar, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_Guard = TypeVar("_Guard", bound="GuardedParameter")

METADATA = {
    "shape", "dtype", "device", "layout", "requires_grad", "grad", "is_leaf", "grad_fn", "ndim", "itemsize", "nbytes",
    "is_meta", "is_cuda", "is_cpu", "is_xpu", "is_mps", "is_mkldnn", "is_sparse", "is_quantized", "is_nested", "names",
    "size", "dim", "numel", "nelement", "stride", "storage_offset", "element_size", "is_floating_point", "is_complex",
    "is_contiguous", "is_pinned", "is_shared", "is_inference", "get_device",
    "requires_grad_", "register_hook", "_version", "_backward_hooks", "output_nr", "__len__", "__hash__", "is_conj",
    "is_neg", "is_signed", "is_same_size", "retains_grad", "_is_view",
}  # fmt: skip
"""Attributes and functions of a tensor that do not read its values."""


def reads_values(function: Any) -> bool:
    """Returns whether a function of tensors, or an attribute's `__get__`, reads their values."""
    name, of = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    attribute = name in ("__get__", "__set__")
    return (getattr(of, "__name__", "") if attribute else name) not in METADATA


def _tensors_in(found: list[Any]) -> Iterator[Tensor]:
    """Yields the tensors of a list, also those in tuples and lists; empties it."""
    while found:
        item = found.pop()
        if isinstance(item, (tuple, list)):
            found += item
        elif isinstance(item, Tensor):
            yield item


class Reads(TorchFunctionMode):
    """Notes the memory that torch's functions read while it is on.

    Attributes:
        storages: Addresses.
    """

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()

    def __torch_function__(
        self, function: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Calls the function."""
        if reads_values(function):
            for t in _tensors_in([*args, *(kwargs or {}).values()]):
                with suppress(RuntimeError):  # those without memory of their own
                    self.storages.add(t.untyped_storage().data_ptr())
        return function(*args, **(kwargs or {}))


class GuardedParameter(nn.Parameter):
    """A parameter that is brought up to date before it is read, or that refuses to be read.

    Each policy and each offload makes its own subclass, so that no parameter carries them into a pickle.

    Attributes:
        before_reading: Called before code outside of the layer's own forward reads or writes the values.
        plain: The class that parameters have without the guard.
        kinds: Subclasses for parameters of other classes than `nn.Parameter`, see `Guards`.
    """

    before_reading: ClassVar[Callable[[Tensor], None]]
    plain: ClassVar[type[nn.Parameter]] = nn.Parameter
    kinds: ClassVar[dict[type[Tensor], Any]]

    @classmethod
    def of(cls: type[_Guard], before_reading: Callable[[Tensor], None]) -> type[_Guard]:
        """Returns the class of the parameters of one policy or offload."""
        own = {"before_reading": staticmethod(before_reading), "kinds": {}}
        return type(cls.__name__, (cls,), own)

    @classmethod
    def __torch_function__(
        cls, function: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Calls the function once the values are up to date."""
        # No `with DisableTorchFunctionSubclass()`, at whose end Ctrl-C would leave it disabled.
        disabled = torch._C._disabled_torch_function_impl
        if function is Tensor.detach and sys._getframe(1).f_code is nn.Parameter.__new__.__code__:
            raise TypeError(
                "nn.Parameter(), as register_parametrization calls it: restore='factors' or zo.offload guards the given"
                " weight; give it .detach(), or call the optimizer's or the offload's close() before"
            )
        if reads_values(function):
            disabled(cls._update, kinds, ([*args, *(kwargs or {}).values()],), {})
        return disabled(function, kinds, args, kwargs or {})

    @staticmethod
    def _update(found: list[Any]) -> None:
        """Brings parameters up to date, also those in tuples and lists."""
        for item in _tensors_in(found):
            if isinstance(item, GuardedParameter):
                type(item).before_reading(item)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        """Returns a parameter of θ without the guard."""
        if id(self) not in memo:
            copied = Tensor._make_subclass(self.plain, self.detach().clone(), self.requires_grad)
            memo[id(self)] = copied
        parameter: nn.Parameter = memo[id(self)]
        return parameter


class FactoredParameter(GuardedParameter):
    """W of θ = W + A Vᵀ."""


class ReplacedForward(functools.partial):  # type: ignore[type-arg]
    """Replaces a layer's own forward. A deep copy of the layer has the own one again.

    Attributes:
        module: The layer.
        plain: The `forward` that the layer's dictionary had, if any.
    """

    module: nn.Module
    plain: Callable[..., Any] | None
    own_forward: Callable[..., Any] | None = None

    @property
    def inner(self) -> Callable[..., Any]:
        """The replaced forward."""
        if self.plain is not None:  # which may count as false
            return self.plain
        return MethodType(type(self.module).forward, self.module)

    @classmethod
    def of(cls, module: nn.Module, forward: Callable[..., Any]) -> ReplacedForward:
        """Returns the replacement of a layer's forward; `put` installs it."""
        made = cls(forward)
        made.module, made.plain = module, None
        return made

    def put(self) -> ReplacedForward:
        """Installs the replacement of the layer's current forward."""
        own = self.module.__dict__
        if (current := own.get("forward")) is not self:
            self.plain, own["forward"] = current, self
        self.own_forward = self.inner
        return self

    def take_back(self) -> None:
        """Restores the layer's own forward, unless another one has replaced this one."""
        own = self.module.__dict__
        if own.get("forward") is self:
            if self.plain is None:
                del own["forward"]
            else:
                own["forward"] = self.plain

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        """Returns the forward of the copied layer, bound to it."""
        if self.plain is not None:
            plain: Callable[..., Any] = copy.deepcopy(self.plain, memo)
            return plain
        return MethodType(type(self.module).forward, copy.deepcopy(self.module, memo))

    def __reduce__(self) -> Any:
        """Refuses to be pickled.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "the model is patched (restore='factors', or zo.offload); pickle its state_dict, or call"
            " the optimizer's close() or the offload's first"
        )


@contextmanager
def replaced(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """While the body runs, modules have other forwards."""
    made = [ReplacedForward.of(module, forward) for module, forward in forwards.items()]
    try:
        for forward in made:
            forward.put()
        yield
    finally:
        for forward in reversed(made):
            forward.take_back()


VIEW_STAYS = " keeps a view of its weights after its call, or returns one where it cannot be found"


def put_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Replaces a module's own forward below its `ReplacedForward`s."""
    outer: ReplacedForward | None = None
    found = module.__dict__.get("forward")
    while isinstance(found, ReplacedForward):
        outer, found = found, found.plain
    if outer is None:
        module.__dict__["forward"] = forward
    else:
        outer.plain = outer.own_forward = forward


ParameterOwners: TypeAlias = dict[nn.Module, list[tuple[nn.Module, str, int]]]
"""Modules and their parameters: (the module, or the container in it, name there, position)."""

CONTAINERS = (nn.ParameterDict, nn.ParameterList)
"""Containers of parameters, which are not called: the module that they are in computes with them."""


def parameter_owners(model: nn.Module, position: Callable[[Tensor], int | None]) -> ParameterOwners:
    """Returns the modules that compute with parameters.

    Args:
        model: The model.
        position: Returns a parameter's position, or None to leave it out.
    """
    held: ParameterOwners = {}
    callers: dict[nn.Module, nn.Module]
    callers = {c: m for m in model.modules() for c in m.children() if isinstance(c, CONTAINERS)}
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False, remove_duplicate=False):
            if (i := position(p)) is not None:
                held.setdefault(callers.get(module, module), []).append((module, name, i))
    return held


def refuse_scripted(policy: str, owners: ParameterOwners) -> None:
    """Raises ValueError if TorchScript computes with a parameter, since its code takes no other tensor."""
    for module in (module for of in owners.values() for module, *_ in of):
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f'restore={policy!r}: {module.original_name} is a ScriptModule; use restore="snapshot"'
            )


class Guards:
    """Guards parameters in place, by another class: the same objects, in whatever holds them, with the same memory.

    A parameter gets a subclass of the guard and of its own class, and later its own class back. One whose class has its
    own torch functions is not guarded, and one that something else gave another class meanwhile keeps that.

    Args:
        parameters: The parameters, not guarded yet.
        guard: See `GuardedParameter.of`.
    """

    def __init__(self, parameters: Iterable[Tensor], guard: type[GuardedParameter]):
        kinds = [(p, type(p), _subclass(type(p), guard)) for p in parameters]
        self._kinds = [(p, plain, guarded) for p, plain, guarded in kinds if guarded is not None]

    def set(self, on: bool) -> None:
        """Guards the parameters, or no longer does."""
        for p, plain, guarded in self._kinds:
            was, to = (plain, guarded) if on else (guarded, plain)
            if p.__class__ is was:
                p.__class__ = to  # type: ignore[assignment]


def _subclass(kind: type[Tensor], guard: type[_Guard]) -> type[_Guard] | None:
    """Returns the guard's subclass for parameters of a class; None for a class that has its own torch functions."""
    own = kind.__torch_function__ != nn.Parameter.__torch_function__
    if own or nn.Parameter not in kind.__mro__:
        return None
    if kind is not nn.Parameter and kind not in guard.kinds:
        guard.kinds[kind] = type(kind.__name__, (guard, kind), {"plain": kind})
    found: type[_Guard] = guard.kinds.get(kind, guard)
    return found


def looks_up(module: nn.Module) -> bool:
    """Returns whether a module reads only some rows of its weight."""
    plain = isinstance(module, nn.Embedding) and type(module).forward is nn.Embedding.forward
    return plain and module.max_norm is None


def looked_up(module: nn.Module, args: tuple[Any, ...]) -> Tensor | None:
    """Returns the rows of its weight, (r,), that a module reads for `args`; None is all."""
    if not looks_up(module) or not args or args[0].numel() >= module.num_embeddings:
        return None
    rows: Tensor = args[0].reshape(-1).long()
    return rows
