"""Files that came with an installed pip package, found without importing the package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PREFIX = "package:"


def resolve(address: str) -> str:
    """Turn ``package:<package>/<file or directory>`` into a path; other addresses stay as they are.

    Raises:
        FileNotFoundError: the package is not installed, or has no such file; one sentence.
    """
    if not address.startswith(PREFIX):
        return address
    package, _, inside = address.removeprefix(PREFIX).partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the pip package {package!r} is not installed")
    folders = [Path(folder) for folder in spec.submodule_search_locations]
    for folder in folders:
        if (folder / inside).exists():
            return str(folder / inside)
    raise FileNotFoundError(f"the pip package {package!r} has no {inside!r}")
