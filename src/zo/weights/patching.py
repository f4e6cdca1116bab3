"""What stands in a model whose weights are held elsewhere: parameters whose readers get θ, and replaced forwards.

Under `restore=factors` a layer computes with W + A Vᵀ while its parameter holds W alone; under offload an update may
not have reached the parameter yet. Whatever reads the parameter elsewhere (`state_dict`, `save_pretrained`, a moving
average, `load_state_dict`) gets θ, because whoever holds the rest is called first.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

METADATA = {
    "shape", "dtype", "device", "layout", "requires_grad", "grad", "is_leaf", "grad_fn", "ndim", "itemsize", "nbytes",
    "is_meta", "is_cuda", "is_cpu", "is_xpu", "is_mps", "is_mkldnn", "is_sparse", "is_quantized", "is_nested", "names",
    "size", "dim", "numel", "nelement", "stride", "storage_offset", "element_size", "is_floating_point", "is_complex",
    "is_contiguous", "is_pinned", "is_shared", "is_inference", "get_device", "data_ptr", "untyped_storage",
    "requires_grad_", "register_hook", "_version", "_backward_hooks", "output_nr", "__len__", "__hash__",
}  # fmt: skip
"""Attributes and functions of a tensor that read none of its values."""


class GuardedParameter(nn.Parameter):
    """A parameter that is not θ before it is read.

    Every holder makes a subclass of its own, so that no parameter carries it into a pickle.

    Attributes:
        before_reading: Called before a function reads or writes the values, outside of the layer's own forward.
    """

    before_reading: ClassVar[Callable[[Tensor], None]]

    @classmethod
    def __torch_function__(
        cls, function: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Calls the function on plain values, once they are θ."""
        name, of = getattr(function, "__name__", ""), getattr(function, "__self__", None)
        attribute = getattr(of, "__name__", "") if name == "__get__" else name
        with torch._C.DisableTorchFunctionSubclass():
            if attribute not in METADATA:
                found: list[Any] = [*args, *(kwargs or {}).values()]
                while found:
                    item = found.pop()
                    if isinstance(item, (tuple, list)):
                        found += item
                    elif isinstance(item, GuardedParameter):
                        type(item).before_reading(item)
            return function(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        """Returns a plain parameter of θ."""
        if id(self) not in memo:
            copied = nn.Parameter(self.detach().clone(), self.requires_grad)
            memo[id(self)] = copied
        parameter: nn.Parameter = memo[id(self)]
        return parameter


class FactoredParameter(GuardedParameter):
    """W of θ = W + A Vᵀ."""


def factored(before_reading: Callable[[Tensor], None]) -> type[FactoredParameter]:
    """Returns the class of one policy's parameters."""
    return type("Factored", (FactoredParameter,), {"before_reading": staticmethod(before_reading)})


class ReplacedForward(functools.partial):  # type: ignore[type-arg]
    """A layer's forward in place of its own; a copy of the layer has its own again.

    Attributes:
        module: The layer.
        plain: What its dictionary had as `forward`, if anything.
    """

    module: nn.Module
    plain: Callable[..., Any] | None

    @property
    def inner(self) -> Callable[..., Any]:
        """The forward that this one stands in place of."""
        return self.plain or MethodType(type(self.module).forward, self.module)

    @classmethod
    def into(cls, module: nn.Module, forward: Callable[..., Any]) -> ReplacedForward:
        """Puts a forward in place of a layer's own."""
        made = cls(forward)
        made.module, made.plain = module, module.__dict__.get("forward")
        module.__dict__["forward"] = made
        return made

    def take_back(self) -> None:
        """Gives the layer its own forward back, unless another has replaced this one."""
        if self.module.__dict__.get("forward") is self:
            del self.module.__dict__["forward"]
            if self.plain is not None:
                self.module.__dict__["forward"] = self.plain

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
            "the model's weights are held elsewhere (restore='factors', or zo.offload); pickle its state_dict, or call"
            " the optimizer's close() or the offload's first"
        )


def put_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Gives a module another forward, within those that stand in place of its own."""
    outer: ReplacedForward | None = None
    found = module.__dict__.get("forward")
    while isinstance(found, ReplacedForward):
        outer, found = found, found.plain
    if outer is None:
        module.__dict__["forward"] = forward
    else:
        outer.plain = forward
