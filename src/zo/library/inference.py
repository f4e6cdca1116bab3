"""Whether a closure is called in torch's inference mode, where operations cost less: a trial decides."""

import gc
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


def has_compiled() -> bool:
    """Returns whether torch.compile has compiled something in this process."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


class InferenceTrial:
    """Calls a function in inference mode, if a trial shows that it may be.

    Inference tensors serve no later backward pass, and no write outside of the mode. So the first call is outside: what
    a model makes once, and keeps, are ordinary tensors. The second is the trial: if such tensors outlive it, all later
    calls are outside. So they are after any call that fails inside, which is made once more, and where torch.compile
    has compiled something, which it would do again.

    Args:
        possible: Whether to try it.
    """

    def __init__(self, possible: bool):
        self._inside = None if possible else False
        self._called = False

    def __call__(self, function: Callable[[], Result]) -> Result:
        """Calls the function, whose result holds no tensors."""
        if self._inside is None and self._called and has_compiled():
            self._inside = False
        if self._inside is False or not self._called:
            self._called = True
            return function()
        try:
            with torch.inference_mode():
                return function() if self._inside else self._try(function)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # as torch's refusals are; one of the function's own comes again
            self._inside = False
        return function()

    def _try(self, function: Callable[[], Result]) -> Result:
        gc.collect(0)
        collects, made = gc.isenabled(), _collections()
        try:
            gc.disable()  # so that the youngest generation is what the call has made
            result = function()
            kept = any(map(_is_inference, gc.get_objects(0)))
            self._inside = not kept and made == _collections()
        finally:
            if collects:
                gc.enable()
        return result


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def _is_inference(found: object) -> bool:
    if not issubclass(type(found), Tensor):
        return False
    own: bool = torch._C._disabled_torch_function_impl(Tensor.is_inference, (), (found,), {})
    return own
