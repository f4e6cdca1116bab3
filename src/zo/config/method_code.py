"""Digest of a method's own code, so that runs of edited code are told from runs of the released one."""

import ast
import os
import subprocess
from collections.abc import Iterable
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path

import xxhash

from zo.config import reward_code
from zo.config.digests import ALGORITHM
from zo.optim import OPTIMIZERS

KEY = "optimizer.code"
"""Where the digest stands among a run's input files and in its identity."""

COMMITTED = "as committed"
"""What stands in a trajectory for code without a digest."""

PACKAGE = Path(__file__).parents[1]
ROOMS = ("optim", "weights", "noise")
"""Packages that decide what a method's step does."""

RELEASED = frozenset(
    [
        "adam",
        "adamezo",
        "bszo",
        "bszo_b",
        "conmezo",
        "eggroll",
        "es",
        "es_at_scale",
        "fzoo",
        "hizoo",
        "lozo",
        "lozo_m",
        "mezo",
        "mezo_adam",
        "sgd",
        "sparse_mezo",
        "subzero",
        "tezo",
        "zo_conservative",
        "zo_momentum",
        "zo_muon",
        "zo_sign",
    ]
)
"""Methods of this project. What changes their numbers raises `zo.config.identity.NUMBERS`."""


@cache
def of_method(name: str, package: Path = PACKAGE) -> str | None:
    """Returns the digest of a method's code that is not a commit's of this project; None if there is none.

    The code of a method of your own counts always. Of a released method, files and settings that differ from the
    checked out commit count. Without git no difference is seen.

    Args:
        name: In `zo.optim.OPTIMIZERS`.
        package: Directory of the package `zo`.
    """
    edited, own = _edited(package), name not in RELEASED
    if not edited and not own:
        return None
    files = _imported(_module(package, name), package)
    counted = {file for file in files if file in edited}
    if own:
        released = [_module(package, other) for other in RELEASED if other in OPTIMIZERS]
        counted |= files - set[Path]().union(*(_imported(file, package) for file in released))
    config, base = OPTIMIZERS[name].config, package
    if config.file:
        file = _module(package, name)
        base, counted = file.parent, counted | {file} | reward_code.imported(file)
    pieces = {os.path.relpath(file, base): file.read_text(encoding="utf-8") for file in counted}
    for settings in config.__mro__:
        if is_dataclass(settings) and settings.__module__.startswith("zo."):
            file = package.joinpath(*settings.__module__.split(".")[1:]).with_suffix(".py")
            text = _class(file.read_text(encoding="utf-8"), settings.__name__)
            if (own and settings is config) or (
                file in edited and text != _class(_committed(file), settings.__name__)
            ):
                pieces[settings.__name__] = text
    if not pieces:
        return None
    digest = xxhash.xxh3_128()
    for piece, text in sorted(pieces.items()):
        digest.update(f"{piece} {len(text)} {text};".encode())
    return f"{ALGORITHM}:{digest.hexdigest()}"


def _module(package: Path, name: str) -> Path:
    method = OPTIMIZERS[name]
    if method.own is not None:
        return Path(method.config.file.rpartition(":")[0])
    return package.joinpath(*method.module.split(".")[1:]).with_suffix(".py")


@cache
def _edited(package: Path) -> frozenset[Path]:
    """Returns the files of the rooms that differ from the checked out commit; empty if no commit has them."""
    if not _git(package, "ls-files", "optim/__init__.py"):
        return frozenset()
    changed = _git(package, "diff", "--name-only", "--relative", "-z", "HEAD", "--", *ROOMS)
    new = _git(package, "ls-files", "--others", "--exclude-standard", "-z", "--", *ROOMS)
    return frozenset(package / name for name in f"{changed}{new}".split("\0") if name)


def _committed(file: Path) -> str:
    """Returns the text of a file in the checked out commit; empty if it is not there."""
    return _git(file.parent, "show", f"HEAD:./{file.name}")


def _git(directory: Path, *arguments: str) -> str:
    """Returns what git prints, or nothing where there is no git or no commit."""
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _imported(module: Path, package: Path) -> set[Path]:
    """Returns a module's file and the files of the rooms that it imports, directly or not, without settings."""
    found, left = set[Path](), [module]
    while left:
        file = left.pop()
        settings = file != module and file.name.startswith(("__init__", "config"))
        if file in found or settings or not file.is_file():
            continue
        found.add(file)
        for name in _imports(file):
            parts = name.split(".")
            if parts[0] == "zo" and len(parts) > 2 and parts[1] in ROOMS:
                left.append(package.joinpath(*parts[1:]).with_suffix(".py"))
    return found


@cache
def _imports(file: Path) -> Iterable[str]:
    """Returns the dotted names that a file imports."""
    names: list[str] = []
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except SyntaxError:  # whoever imports the file says so
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


def _class(text: str, name: str) -> str:
    """Returns the source of a class in a file's text; empty if it is not there."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return ast.get_source_segment(text, node) or ""
    return ""
