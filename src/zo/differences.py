"""Which keys differ between runs: what a multirun lists, a manifest keeps and a table's row shows."""

from collections.abc import Mapping, Sequence
from typing import Any

TEXT = 40
"""Characters of a text that distinguishes a run, more where so many are equal."""


ONLY_PROBES = ("restore", "noise", "rounding")
"""Settings of precision that decide nothing in a run without steps."""


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
    group, _, name = key.partition(".")
    return (group != "precision" or name not in ONLY_PROBES) and group in (
        "model",
        "task",
        "precision",
        "adapter",
        "objective",
    )


def shortened(values: Sequence[str], most: int = TEXT) -> dict[str, str]:
    """Returns values as they are shown: sentences from the first word that differs, as long as they differ in."""
    if max(map(len, values)) <= most or not any(" " in value for value in values):
        return {value: value for value in values}
    words = [value.split(" ") for value in values]
    pairs = enumerate(zip(*words, strict=False))
    same = next((i for i, of in pairs if len({*of}) > 1), min(map(len, words)))
    ends = ["… " * (same > 0) + " ".join(of[same:]) for of in words]
    cut = [f"{end[:most]}…" if len(end) > most else end for end in ends]
    if len({*cut}) < len({*values}):
        return shortened(values, 2 * most)
    return dict(zip(values, cut, strict=True))
