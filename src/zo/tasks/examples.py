"""Examples of a task, and the three splits that they form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Example:
    """The columns of one row that the templates need, and the index of its true candidate.

    Attributes:
        fields: Column -> value.
        label: Index of the true candidate.
        row: Number in its file, from 0.
        columns: All columns of the row, if a reward function gets them.
    """

    fields: dict[str, Any]
    label: int
    row: int = 0
    columns: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Splits:
    """The examples of a run, each split in a fixed order."""

    train: list[Example]
    validation: list[Example]
    test: list[Example]
