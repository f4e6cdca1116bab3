"""A progress bar on the terminal's error stream; nothing where there is no terminal."""

from collections.abc import Iterable
from typing import TypeVar

from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")


def progress(items: Iterable[Item], words: str, total: float | None = None) -> Iterable[Item]:
    """The items, with a bar that counts them; `total` where they do not say how many they are."""
    there = Console(stderr=True)
    hidden = not there.is_terminal
    return track(items, words, total=total, console=there, transient=True, disable=hidden)
