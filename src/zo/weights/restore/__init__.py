"""Restore policies, one file each: how θ is displaced for a probe and restored after it.

To add one: a file here, a line in `CLASSES`, its constraints in `zo.weights.constraints`.
"""

from pkgutil import resolve_name

from zo.weights.restore.base import (
    Excursion,
    Probe,
    RestoreError,
    RestorePolicy,
    Unmoved,
)

__all__ = [
    "Excursion",
    "Probe",
    "RestoreError",
    "RestorePolicy",
    "Unmoved",
    "policy",
]


CLASSES = {
    "subtract": "subtract:Subtract",
    "merged": "merged:Merged",
    "snapshot": "snapshot:Snapshot",
    "streamed": "streamed:Streamed",
    "factors": "factors:Factors",
}
"""Name of `RESTORE_POLICIES` -> module and class, imported when the policy is used."""


def policy(name: str) -> type[RestorePolicy]:
    """Returns the class of a name of `RESTORE_POLICIES`."""
    kind: type[RestorePolicy] = resolve_name(f"{__name__}.{CLASSES[name]}")
    return kind
