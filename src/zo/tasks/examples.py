"""Examples of a task, their splits, and the mini-batches of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Example:
    """The columns of one row that the templates need, and the index of its true candidate."""

    fields: dict[str, Any]  # Column -> value
    label: int  # Index of the true candidate
    row: int = 0  # Number in its file, from 0
    # All columns of the row, if a reward function gets them
    columns: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Splits:
    """The examples of a run, each split in a fixed order."""

    train: list[Example]
    validation: list[Example]
    test: list[Example]


STREAM = 1  # keeps this order apart from any other use of the run's seed


def batch_indices(n: int, batch_size: int, seed: int, step: int) -> list[int]:
    """Returns the examples of step `step`, counted from 0: `batch_size` indices below n.

    Mini-batches come from a sequence of permutations of the examples, so that every batch is full.
    """
    first = step * batch_size
    return [_permutation(n, seed, i // n)[i % n] for i in range(first, first + batch_size)]


@lru_cache(2)  # a mini-batch spans two epochs at most
def _permutation(n: int, seed: int, epoch: int) -> list[int]:
    found: list[int] = np.random.default_rng([seed, STREAM, epoch]).permutation(n).tolist()
    return found
