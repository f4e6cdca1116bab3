"""What commands share: streams that print every character, and sentences where libraries are missing."""

import io
import sys


def print_every_character() -> None:
    """Makes standard output and error escape a character that the locale's encoding does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


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
