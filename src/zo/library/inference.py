"""Whether a closure is called in torch's inference mode, where operations cost less: a trial decides."""

import gc
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

Result = TypeVar("Result")
OF_MODE = re.compile("[Ii]nference|require grad|requires_grad|version.counter")
"""What torch's refusals in inference mode say."""

SWITCHES: tuple[tuple[Any, str], ...] = (
    (torch._C, "_set_grad_enabled"),
    (forward_ad, "enter_dual_level"),
)
"""What switches derivatives on."""

_lock = threading.Lock()
_threads: list[int] = []  # that call a function in inference mode


def has_compiled() -> bool:
    """Returns whether torch.compile has compiled something in this process."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


class InferenceTrial:
    """Calls a function in inference mode, if a trial shows that it may be.

    Inference tensors serve no later backward pass, and no write outside of the mode. So the first call is outside: what
    a model makes once, and keeps, are ordinary tensors. The second is the trial: if such tensors outlive it, all later
    calls are outside. So they are after any call that asks for derivatives, or that torch refuses inside, which is made
    once more, and where torch.compile has compiled something, which it would do again.

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
            with torch.inference_mode(), _refusing_derivatives():
                return function() if self._inside else self._try(function)
        except (
            RuntimeError
        ) as error:  # of another one a second call might hide what stopped the first
            known = type(error) is RuntimeError and OF_MODE.search(str(error))
            if not known and not isinstance(error, DerivativeError):
                raise
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


class DerivativeError(RuntimeError):
    """A function asks for derivatives, which inference mode would take for 0 without a word."""


@contextmanager
def _refusing_derivatives() -> Iterator[None]:
    """In the body, in this thread and in inference mode, to switch on gradients or forward AD is a DerivativeError."""
    with _lock:
        if not _threads:
            for of, name in SWITCHES:
                setattr(of, name, _guarded(getattr(of, name)))
        _threads.append(threading.get_ident())
    try:
        yield
    finally:
        with _lock:
            _threads.remove(threading.get_ident())
            if not _threads:
                for of, name in SWITCHES:
                    setattr(of, name, getattr(of, name).switch)


def _guarded(switch: Callable[..., Any]) -> Callable[..., Any]:

    def guarded(*on: bool) -> Any:
        if all(on) and threading.get_ident() in _threads and torch.is_inference_mode_enabled():
            raise DerivativeError
        return switch(*on)

    guarded.switch = switch  # type: ignore[attr-defined]
    return guarded


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def _is_inference(found: object) -> bool:
    if not issubclass(type(found), Tensor):
        return False
    own: bool = torch._C._disabled_torch_function_impl(Tensor.is_inference, (), (found,), {})
    return own
