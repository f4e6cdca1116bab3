"""How to reach machines: what a sweep consists of, what it costs, what of it is done. Nothing scientific."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class LaunchError(RuntimeError):
    """Runs cannot be given to SLURM or to a process of this machine; the text says why."""


def python_path() -> str:
    """Returns PYTHONPATH for a process that imports this package."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
