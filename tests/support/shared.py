"""Directories that are made once for all workers of a test session."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def shared_directory(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]
) -> Path:
    """Returns a directory that the first worker makes and the others wait for and read."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    place, unfinished = root / name, root / f"{name}.unfinished"
    with FileLock(root / f"{name}.lock"):
        if not place.exists():
            make(unfinished)
            unfinished.rename(place)
    return place
