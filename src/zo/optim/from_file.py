"""A method in a file of one's own, `my_method.py:MyMethod`, which becomes one of `zo.optim.OPTIMIZERS`."""

import sys
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

from zo.optim import OPTIMIZERS, Method
from zo.optim.config import MethodConfig

_read: dict[Path, tuple[bytes, ModuleType]] = {}
"""Content of each file when it was run, and its module."""


def register(address: str) -> str:
    """Runs a file, adds a method of it to the registry under its class's name, and returns that name.

    The settings are the dataclass that the class's annotation `config` names. An unchanged file is run once.

    Args:
        address: `file.py:Class`; the class is a `zo.optim.base.ZOOptimizer`.

    Raises:
        ValueError: If there is no such file or class, it is no method, or another method has its name.
    """
    place, _, name = address.rpartition(":")
    file = Path(place).expanduser().resolve()
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    if name in OPTIMIZERS and Path(OPTIMIZERS[name].config.file.rpartition(":")[0]) != file:
        there = OPTIMIZERS[name].config.file or "zo"
        raise ValueError(f"{there} has a method {name}, too; give the class another name")
    before, module = _read.get(file), _run(file)
    if name not in OPTIMIZERS or before is None or before[1] is not module:
        OPTIMIZERS[name] = _method(module, name, f"{file}:{name}")
    return name


def was_run(address: str) -> bool:
    """Returns whether this process has run the file of `file.py:Class`."""
    return Path(address.rpartition(":")[0]).expanduser().resolve() in _read


def _run(file: Path) -> ModuleType:
    """Returns the module of a file, which imports from its folder as a script does."""
    content = file.read_bytes()
    if file in _read and _read[file][0] == content:
        return _read[file][1]
    module = ModuleType(f"{file.stem} of {file.parent}")
    module.__file__ = str(file)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    sys.modules[module.__name__] = module  # dataclass looks its types up there
    try:
        exec(compile(content, file, "exec"), vars(module))
    except BaseException as error:
        del sys.modules[module.__name__]
        if not isinstance(error, (Exception, SystemExit)):
            raise
        raise ValueError(f"{file} cannot be run: {type(error).__name__}: {error}") from error
    _read[file] = content, module
    return module


def _method(module: ModuleType, name: str, address: str) -> Method:
    """Returns a class's method, whose settings have the class's name."""
    from zo.optim.base import ZOOptimizer  # here: it imports torch

    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, ZOOptimizer)):
        raise ValueError(
            f"{module.__file__} has no class {name} that builds on ZOOptimizer or a method of it"
        )
    settings = get_type_hints(kind).get("config")
    if not (isinstance(settings, type) and issubclass(settings, MethodConfig)):
        raise ValueError(
            f"{name} needs a line `config: Settings`, a dataclass that builds on ZerothOrderConfig"
        )
    if "__annotations__" in vars(settings) and not is_dataclass(settings):
        raise ValueError(f"{settings.__name__} needs @dataclass(kw_only=True)")
    members: dict[str, object] = {"__doc__": settings.__doc__, "__module__": __name__}
    members |= {"__annotations__": {"name": str}, "name": name, "file": address}
    made: type[MethodConfig] = type(f"{name}Config", (settings,), members)
    made = dataclass(kw_only=True)(made)
    globals()[made.__name__] = made  # where pickle looks it up
    return Method(made, name, f"{module.__name__}:{name}")
