"""Files of a reward function or a method, found without running any of them."""

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from zo.config.digests import of_files

IMPORTS = "objective.imports"
"""Where the digest of what a reward's file imports stands among a run's input files and in its identity."""

FILES = "objective.files"
"""Where the digest of the code of several functions stands there."""

INSTALLED = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")
)


def address(function: str) -> str:
    """Returns where the file of ``module:function`` or ``file.py:function`` is, or would be."""
    place, file = function.partition(":")[0], source(function)
    if file is None and not place.endswith(".py"):
        return f"{place.replace('.', '/')}.py"
    return str(file or place)


def source(function: str) -> Path | None:
    """Returns the file of ``module:function`` or ``file.py:function``; None if there is none."""
    place = function.partition(":")[0]
    if place.endswith(".py"):
        file = Path(place).expanduser()
        return file if file.is_file() else None
    names, folders, found = place.split("."), list(sys.path), None
    for depth in range(1, len(names) + 1):
        found = PathFinder.find_spec(".".join(names[:depth]), folders)
        if found is None:
            return None
        folders = list(found.submodule_search_locations or ())
    return Path(found.origin) if found and found.origin and found.origin.endswith(".py") else None


def imported(file: Path) -> set[Path]:
    """Returns the files that a reward's file imports from its folder or package, directly or not.

    Of an installed package there are none: its version says which they are.
    """
    file = file.resolve()
    if any(file.is_relative_to(place) for place in INSTALLED):
        return set()
    folder = root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    found, left = {file}, [file]
    while left:
        for path in _imports(left.pop(), (folder, root)):
            if path not in found:
                found.add(path)
                left.append(path)
    return found - {file}


def of_imports(function: str) -> str | None:
    """Returns the digest of the files that a reward imports from its folder; None if it imports none."""
    file = source(function)
    files = imported(file) if file else ()
    return of_files(file.resolve().parent, files) if file and files else None


def of_functions(functions: Iterable[str]) -> str | None:
    """Returns the SHA-256 of several functions' addresses, files and what these import; None if no file is found."""
    found = [(function, file) for function in sorted(functions) if (file := source(function))]
    digest = hashlib.sha256()
    for function, file in found:
        digest.update(function.encode())
        for path in (file, *sorted(imported(file))):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest() if found else None


def _imports(file: Path, roots: tuple[Path, ...]) -> Iterator[Path]:
    """Yields the files below some folders that a file imports."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):  # whoever loads the function says so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _of_name(alias.name, roots)
        elif isinstance(node, ast.ImportFrom):
            within = (file.parents[node.level - 1],) if node.level else roots
            for alias in node.names:
                yield from _of_name(f"{node.module or ''}.{alias.name}".strip("."), within)


def _of_name(name: str, roots: tuple[Path, ...]) -> Iterator[Path]:
    """Yields the modules and packages of a dotted name, its last part a module or a thing of one."""
    parts = name.split(".")
    for root in roots:
        for depth in range(1, len(parts) + 1):
            at = root.joinpath(*parts[:depth])
            yield from (p for p in (at.with_suffix(".py"), at / "__init__.py") if p.is_file())
