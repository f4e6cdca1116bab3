"""Restore policies, one file each: how θ is displaced for a probe and restored after it.

To add one: a file with its name here, a class with its name in title case, its constraints in `zo.weights.constraints`.
"""

from importlib import import_module

from zo.weights.restore.base import (
    Excursion,
    FactoredPolicy,
    Probe,
    RestoreError,
    RestorePolicy,
    Unmoved,
)

__all__ = [
    "Excursion",
    "FactoredPolicy",
    "Probe",
    "RestoreError",
    "RestorePolicy",
    "Unmoved",
    "policy",
]


def policy(name: str) -> type[RestorePolicy]:
    """Returns the class of a name of `RESTORE_POLICIES`."""
    kind: type[RestorePolicy] = getattr(import_module(f"{__name__}.{name}"), name.title())
    return kind
