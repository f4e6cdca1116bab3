"""What commands share: streams that print every character, and sentences where libraries are missing."""

import argparse
import io
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
"""Signals that ask a process to stop."""


def print_every_character() -> None:
    """Makes standard output and error escape a character that the locale's encoding does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def alias(command: str, main: Callable[[], int]) -> int:
    """Runs a command under its former name, says the one that it has now, and returns the exit status."""
    print_every_character()
    print(f"this is now the command `zo {command}`", file=sys.stderr)
    return main()


def parser(command: str, description: str | None) -> argparse.ArgumentParser:
    """Returns the parser of `zo COMMAND`, whose help is its module's docstring."""
    layout = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(f"zo {command}", description=description, formatter_class=layout)


def add_model(to: argparse.ArgumentParser) -> None:
    """Adds the options of a command that makes a run's model again."""
    to.add_argument("--model", metavar="PATH", help="where the base model is, if not where it was")
    to.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")


def in_time(call: Callable[[], object], seconds: float) -> object:
    """Returns a call's result or the exception that it raised; None if it takes longer, as looking up a host may."""
    found: list[object] = []

    def called() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=called, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def progress(items: Iterable[T], words: str, total: float | None = None) -> Iterable[T]:
    """Returns items that a bar on the terminal's stderr counts; `total` where they do not say how many they are."""
    from rich.console import Console  # here: the library needs no bar
    from rich.progress import track

    there = Console(stderr=True)
    hidden = not there.is_terminal
    return track(items, words, total=total, console=there, transient=True, disable=hidden)


def unusable(package: str, error: ImportError) -> str:
    """Returns what to do where the import of an optional package fails: install it, or what the package itself says."""
    if isinstance(error, ModuleNotFoundError):
        return f"needs `pip install {package}`"
    return f"{package} is installed and cannot be imported: {error}"


def missing(command: str, error: ModuleNotFoundError) -> int:
    """Prints which library a command lacks and how to install it; returns the exit status."""
    needed = f"needs {error.name}; pip install 'zo-suite[suite]'"
    print(f"{command}: {needed}", file=sys.stderr)
    return 2


class Trust(argparse.Action):
    """The option `--trust` of commands that read runs' directories."""

    given = False

    def __init__(self, option_strings: Sequence[str], dest: str):
        words = "run code that the directory names: its method's file, its reward's functions"
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=words)

    def __call__(self, *_: object) -> None:
        """Notes it for this process."""
        Trust.given = True
