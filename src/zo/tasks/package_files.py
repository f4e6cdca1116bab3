"""Addresses of files: in an installed pip package (which is not imported), on this machine, or on the hub."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PREFIX = "package:"
FILES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".txt", ".gguf", ".safetensors", ".bin")
"""Endings of files; no hub id has them."""


def resolve(address: str) -> str:
    """Resolves ``package:<package>/<file or directory>`` and ``~`` to a path; other addresses are returned as given.

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
    """Resolves an address that may be a hub id. Raises FileNotFoundError if it is a path that does not exist."""
    path = resolve(address)
    if is_path(address) and not Path(path).exists():
        raise FileNotFoundError(f"there is no file or directory {path}")
    return path


def absent(address: str) -> str:
    """Returns the beginning of an error's text where an address may be a mistyped path: it is not there."""
    there = Path(resolve(address)).exists()
    return "" if there else f"no such file or directory {address} here, and "


def is_path(address: str) -> bool:
    """Returns whether an address can only be a path: by its beginning, its ending, or an existing parent."""
    begins = address.startswith(("/", ".", "~", PREFIX))
    inside = "/" in address and Path(address).parent.is_dir()
    return begins or inside or address.count("/") > 1 or address.lower().endswith(FILES)
