"""The time that this process has spent compiling noise kernels."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

LONG = 0.2
"""Seconds; a longer launch on a GPU, which is asynchronous, counts as a compilation."""

seconds = 0.0
"""Of all compilations so far."""


def add(spent: float) -> None:
    """Adds a compilation's seconds."""
    global seconds
    seconds += spent


@contextmanager
def launching() -> Iterator[None]:
    """Adds the time of a launch on a GPU if it was a compilation."""
    start = time.perf_counter()
    yield
    spent = time.perf_counter() - start
    if spent > LONG and os.environ.get("TRITON_INTERPRET") != "1":
        add(spent)
