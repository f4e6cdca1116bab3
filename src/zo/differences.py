"""Which keys differ between runs: what a multirun lists, a manifest keeps and a table's row shows."""

from collections.abc import Mapping, Sequence
from typing import Any


def differing(rows: Sequence[Mapping[Any, Any]], choice: Sequence[str]) -> list[str]:
    """Returns the keys whose values differ between rows of the same choice, and those of the choice that differ.

    What follows from the choice of model, task, method and precision has one value there, and is left out.
    """
    wanted = []
    for key in dict.fromkeys(key for row in rows for key in row):
        values: dict[tuple[str, ...], set[str]] = {}
        for row in rows:
            own = () if key in choice else tuple(str(row.get(name)) for name in choice)
            values.setdefault(own, set()).add(str(row.get(key, "")))
        if any(len(different) > 1 for different in values.values()):
            wanted.append(key)
    return wanted


def in_facet(key: str) -> bool:
    """Whether a key says what is measured, and on what: only runs that agree in all such keys are compared.

    The others are settings of the method and of its training.
    """
    return key.partition(".")[0] in ("model", "task", "precision", "adapter", "objective")
