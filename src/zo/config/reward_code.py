"""Files of a reward function or a method, found without running any of them."""

import hashlib
import sys
import sysconfig
from collections.abc import Iterable
from importlib.machinery import PathFinder
from itertools import chain, islice
from pathlib import Path

from zo.config import presets
from zo.config.digests import of_files
from zo.tasks.config import TaskError

BESIDE = "objective.imports"
"""Where the digest of the files beside a reward's stands among a run's input files and in its identity."""

FILES = "objective.files"  # Where the digest of the code of several functions stands there

OF_MEASURE = "task.measure_code"
"""Where the digest of the code of the user's own measure stands there."""

MOST_FILES = 500  # Most Python files beside a user's that count as its code
FOLDERS = map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))
INSTALLED = tuple(Path(folder).resolve() for folder in FOLDERS)


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


def beside(file: Path, key: str = "objective.function") -> set[Path]:
    """Returns the other Python files of a user's file: in its folder, and below subfolders that have some.

    Of a file in a package it is the folder that the package lies in, of one in this project's own folder that alone. Of
    an installed package there are none: its version says which they are. `key` names the file in errors.

    Raises:
        TaskError: If there are more than MOST_FILES.
    """
    file = file.resolve()
    if any(file.is_relative_to(place) for place in INSTALLED):
        return set()
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    below = () if root == presets.SUITE else {path.parent for path in root.glob("[!.]*/*.py")}
    every = chain(root.glob("*.py"), *(folder.rglob("*.py") for folder in below))
    found = {*islice(every, MOST_FILES + 1)}
    if len(found) > MOST_FILES:
        raise TaskError(
            f"{key}: more than {MOST_FILES} Python files lie beside {file} and would count as its code; move it and"
            " what it imports to a folder of their own"
        )
    return found - {file}


def of_beside(function: str) -> str | None:
    """Returns the digest of the Python files beside a reward's; None if there are none."""
    file = source(function)
    files = beside(file) if file else ()
    return of_files(file.resolve().parent, files) if file and files else None


def of_functions(functions: Iterable[str]) -> str | None:
    """Returns the SHA-256 of several functions' addresses, files and those beside these; None if no file is found."""
    found = [(function, file) for function in sorted(functions) if (file := source(function))]
    digest = hashlib.sha256()
    for function, file in found:
        digest.update(function.encode())
        for path in (file, *sorted(beside(file))):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest() if found else None
