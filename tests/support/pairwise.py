"""Combinations of settings for tests, in far fewer cases than their product."""

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any


def pairwise(*values: Iterable[Any]) -> list[tuple]:
    """Rows of one value per axis in which every two values of two axes meet at least once."""
    axes = [list(axis) for axis in values]
    every = product(*(range(len(axis)) for axis in axes))
    pairs = {row: {*combinations(enumerate(row), 2)} for row in every}
    rows, left = [], set().union(*pairs.values())
    while left:
        row = max(pairs, key=lambda row: len(pairs[row] & left))
        left -= pairs[row]
        rows.append(tuple(axis[i] for axis, i in zip(axes, row, strict=True)))
    return rows


def rotated(first: Iterable[Any], *others: Iterable[Any]) -> list[tuple]:
    """Rows in which every value of the first comes once or more, beside the others' pairwise rows in turn."""
    firsts, axes = list(first), [list(axis) for axis in others]
    rows = pairwise(*axes) if len(axes) > 1 else [(value,) for value in axes[0]]
    count = max(len(firsts), len(rows))
    return [(firsts[i % len(firsts)], *rows[i % len(rows)]) for i in range(count)]
