"""What a command says where the libraries of the suite are not installed."""

import sys


def missing(command: str, error: ModuleNotFoundError) -> int:
    """Prints which library a command lacks and how to install it; returns the exit status."""
    needed = f"needs {error.name}; pip install 'zo-suite[suite]'"
    print(f"{command}: {needed}", file=sys.stderr)
    return 2
