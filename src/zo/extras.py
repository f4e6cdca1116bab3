"""What commands share: streams that print every character, and a sentence where the suite's libraries are missing."""

import io
import sys


def print_every_character() -> None:
    """Makes standard output and error escape a character that the locale's encoding does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def missing(command: str, error: ModuleNotFoundError) -> int:
    """Prints which library a command lacks and how to install it; returns the exit status."""
    needed = f"needs {error.name}; pip install 'zo-suite[suite]'"
    print(f"{command}: {needed}", file=sys.stderr)
    return 2
