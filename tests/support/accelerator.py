"""Two pretended accelerators, in Python: devices `pretend:0` and `pretend:1` whose tensors lie in the host's memory.

Each operation runs on the CPU, on aliases of its tensors. So its numbers are those of the CPU, bit for bit. As with
GPUs, an operation on tensors of two devices is refused, apart from tensors without dimensions that the host holds, and
from `_foreach` functions. There are no streams and no events.

Aliases are made by DLPack: a capsule holds the device, which is changed there.
"""

import ctypes
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_map

from zo.noise import torch_generator

NAME = "pretend"
SETUP = "_setup_privateuseone_for_python_backend"
CPU = torch.device("cpu")
KINDS = {"cpu": 1, NAME: 12}
"""DLPack's numbers: 12 stands for extensions."""

COPIES: list[str] = []
"""Operations that copied values to the host."""


class _Capsule(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_libraries = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")


def register() -> None:
    """Makes the devices known to torch, and random numbers on them those of the CPU."""
    if torch._C._get_privateuse1_backend_name() == NAME:
        return
    if not hasattr(backend_registration, SETUP):
        pytest.skip(f"this version of torch has no backends written in Python: no {SETUP}")
    getattr(backend_registration, SETUP)(NAME)
    # Others in this process, as torch.distributed.checkpoint, would ask an available device for streams.
    getattr(torch, NAME).is_available = lambda: False
    every, aten = _libraries
    every.fallback(_run, "PrivateUse1")
    norm = torch.ops.aten.native_layer_norm.default  # torch would compose it, and round otherwise
    aten.impl("native_layer_norm", partial(_run, norm), "PrivateUse1")
    of_device = torch.Generator
    torch_generator.Generator = lambda device: of_device(  # type: ignore[misc,assignment]
        CPU if device.type == NAME else device
    )


def _alias(t: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor of the same memory on another device."""
    capsule = torch._C._to_dlpack(t)
    content = _Capsule.from_address(_pointer(capsule, b"dltensor"))
    content.kind, content.index = KINDS[device.type], device.index or 0
    alias: Tensor = torch._C._from_dlpack(capsule)
    return alias


def _run(op: Any, *args: Any, **options: Any) -> Any:
    """Runs an operation of which a tensor is, or is to be, on a device."""
    name = op._schema.name
    if name == "aten::_copy_from":
        source, target = args[:2]
        COPIES.extend([name] * (target.device == CPU))
        _alias(target, CPU).copy_(_alias(source, CPU))
        return target
    COPIES.extend([name] * (name == "aten::_local_scalar_dense"))
    places: list[torch.device] = []
    given: dict[int, Tensor] = {}

    def lowered(x: Any) -> Any:
        if isinstance(x, torch.device):
            places.append(x)
            return CPU
        if not isinstance(x, Tensor):
            return x
        if x.device == CPU:
            places.extend([CPU] * (x.dim() > 0))
            return x
        places.append(x.device)
        alias = _alias(x, CPU)
        given[id(alias)] = x
        return alias

    def raised(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return given[id(x)] if id(x) in given else _alias(x, place)

    on_cpu, outputs = tree_map(lowered, (args, options))
    if len({*places}) > 1 and not name.startswith("aten::_foreach"):
        where = " and ".join(sorted({str(place) for place in places}))
        raise RuntimeError(f"{name}: its tensors are on {where}")
    place = next(of for of in places if of != CPU)
    empty = {key: x for key, x in options.items() if isinstance(x, Tensor) and not x.numel()}
    for key, x in empty.items():  # the operation gives memory to it
        outputs[key] = torch.empty(0, dtype=x.dtype)
        given[id(outputs[key])] = x
    found = op(*on_cpu, **outputs)
    for key, x in empty.items():
        x.data = _alias(outputs[key], place)
    return tree_map(raised, found)
