"""Restore policies, one file each: how θ is displaced for a probe and restored after it.

To add one: a file here, a line in `POLICIES`, its name and constraints in `zo.weights.constraints`.
"""

from zo.weights.restore.base import (
    Excursion,
    FactoredPolicy,
    Probe,
    RestoreError,
    RestorePolicy,
    Unmoved,
)
from zo.weights.restore.factors import Factors
from zo.weights.restore.merged import Merged
from zo.weights.restore.snapshot import Snapshot
from zo.weights.restore.streamed import Streamed
from zo.weights.restore.subtract import Subtract

POLICIES: dict[str, type[RestorePolicy]] = {
    policy.name: policy for policy in (Subtract, Merged, Snapshot, Streamed, Factors)
}

__all__ = [
    "POLICIES",
    "Excursion",
    "FactoredPolicy",
    "Factors",
    "Probe",
    "RestoreError",
    "RestorePolicy",
    "Unmoved",
]
