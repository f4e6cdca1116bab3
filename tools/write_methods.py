"""Writes src/zo/methods.py, the public classes, from the methods' settings and files: part of `make format`."""

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from dataclasses import fields
from pathlib import Path

from zo.optim import OPTIMIZERS
from zo.optim.config import RANGES

METHODS_FILE = Path(__file__).parents[1] / "src/zo/methods.py"

HEAD = '''"""The methods as classes. Written by `make format` from settings and files in `zo.optim`; do not edit."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch.distributed as dist
from torch import nn

from zo.arguments import Parameters, given
from zo.library import ZerothOrder

'''

COMMON = {
    "seed": "int = 0",
    "restore": 'Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None',
    "noise": 'Literal["torch", "philox"] | None = None',
    "rounding": 'Literal["nearest", "stochastic", "compensated"] = "nearest"',
    "model": "nn.Module | None = None",
    "check_closure": "bool = True",
    "record": "str | Path | None = None",
    "group": "dist.ProcessGroup | None = None",
    "check_every": "int | None = 100",
}
"""Arguments of every method, as `ZerothOrder` has them."""


BESIDE = ("weight_decay", "step_norm", "norm_beta", "anchor", "anchor_decay", "anchor_norm")
"""Settings that come last, since all methods have them."""


def shown(default: object) -> str:
    """Returns a default as one would write it."""
    if isinstance(default, float) and 0 < default < 1e-2 and float(f"{default:.0e}") == default:
        return f"{default:.0e}".replace("e-0", "e-")
    return repr(default)


def wrapped(text: str, indent: str) -> str:
    """Returns prose in lines that leave room for a class's indentation."""
    return textwrap.fill(
        text, 112, initial_indent=indent, subsequent_indent=indent * 2, break_on_hyphens=False
    )


def attributes_of(config: type) -> dict[str, str]:
    """Returns what the docstrings of the settings' dataclass and its bases say of each field."""
    found: dict[str, str] = {}
    for base in reversed(config.__mro__):
        section = (inspect.getdoc(base) or "").partition("Attributes:\n")[2]
        for entry in re.split(r"\n(?=    \w)", section.rstrip()):
            key, _, text = entry.strip().partition(": ")
            if key.isidentifier():
                found[key] = " ".join(text.split())
    return found


def class_of(name: str) -> str:
    """Returns the source of a method's class."""
    method = OPTIMIZERS[name]
    doc = ast.get_docstring(
        ast.parse(Path(f"src/zo/optim/{method.module}.py").read_text(encoding="utf-8"))
    )
    paragraphs = (doc or "").split("\n\n")
    if method.title != method.name:
        paragraphs[0] = inspect.getdoc(method.config)
    kept = [
        p if p.startswith(" ") else wrapped(p, "")
        for p in paragraphs
        if not p.startswith("Deviations")
    ]
    texts, arguments, described = attributes_of(method.config), [], []
    own = sorted(fields(method.config), key=lambda field: field.name in BESIDE)
    for field in own:
        if field.name == "name":
            continue
        kind, right = (
            str(getattr(field.type, "__name__", field.type)),
            {**RANGES, **method.config.ranges}.get(field.name, ("", ""))[1],
        )
        if right.startswith("must be one of "):
            options = right.removeprefix("must be one of ").split(", ")
            kind = f"Literal[{', '.join(map(repr, options))}]"
        arguments.append(f"{field.name}: {kind} = {shown(field.default)}")
        described.append(f"{field.name}: {texts[field.name]}")
    args = "\n".join(
        wrapped(text, "    ")
        for text in (
            "params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require"
            " gradients are trained.",
            "lr: Learning rate η ≥ 0.",
            *described,
            f"{', '.join(COMMON)}: As of `ZerothOrder`.",
        )
    )
    raises = "Raises:\n    TypeError: If a setting has another type.\n    ValueError: If one is out of its range."
    body = "\n\n".join([*kept, f"Args:\n{args}", raises])
    return (
        f'class {method.title}(ZerothOrder):\n    """{textwrap.indent(body, "    ").strip()}\n    """\n\n'
        f'    name = "{name}"\n\n    def __init__(self, params: Parameters, lr: float, *, {", ".join(arguments)}, '
        f"{', '.join(f'{k}: {v}' for k, v in COMMON.items())}) -> None:\n"
        "        super().__init__(**given(locals()))\n\n\n"
    )


def methods_file() -> str:
    """Returns what the file should be."""
    names = [name for name, m in OPTIMIZERS.items() if m.config.replays]
    table = ", ".join(f'"{name}": {OPTIMIZERS[name].title}' for name in names)
    text = (
        f"{HEAD}{''.join(map(class_of, names))}METHODS: dict[str, type[ZerothOrder]] = {{{table}}}"
    )
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(METHODS_FILE), "-"]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


if __name__ == "__main__":
    METHODS_FILE.write_text(methods_file(), encoding="utf-8")
