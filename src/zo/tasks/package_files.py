"""Addresses of files: inside an installed pip package, found without importing it, on this machine, or of the hub."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PREFIX = "package:"
FILES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".txt", ".gguf", ".safetensors", ".bin")
"""Endings that no hub id has."""


def resolve(address: str) -> str:
    """Turns ``package:<package>/<file or directory>`` and ``~`` into a path; other addresses stay as they are.

    Raises:
        FileNotFoundError: If the package is not installed, or has no such file; one sentence.
    """
    if not address.startswith(PREFIX):
        return str(Path(address).expanduser()) if address.startswith("~") else address
    package, _, inside = address.removeprefix(PREFIX).partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the pip package {package!r} is not installed")
    folders = [Path(folder) for folder in spec.submodule_search_locations]
    for folder in folders:
        if (folder / inside).exists():
            return str(folder / inside)
    raise FileNotFoundError(f"the pip package {package!r} has no {inside!r}")


def existing(address: str) -> str:
    """Resolves an address that may be a hub id; one that can only be a path has to be there.

    Raises:
        FileNotFoundError: If it is not; one sentence.
    """
    path = resolve(address)
    if is_path(address) and not Path(path).exists():
        raise FileNotFoundError(f"there is no file or directory {path}")
    return path


def is_path(address: str) -> bool:
    """Returns whether an address can only be a path: by its beginning, its ending, or a parent that is there."""
    begins = address.startswith(("/", ".", "~", PREFIX))
    inside = "/" in address and Path(address).parent.is_dir()
    return begins or inside or address.count("/") > 1 or address.lower().endswith(FILES)
