"""A progress bar on the terminal's error stream; nothing where there is no terminal."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")


def progress(items: Sequence[Item], words: str) -> Iterable[Item]:
    """The items, with a bar that counts them."""
    there = Console(stderr=True)
    return track(items, words, console=there, transient=True, disable=not there.is_terminal)
