"""Combinations of settings for tests, in far fewer cases than their product."""

from collections.abc import Iterable
from itertools import combinations
from typing import Any


def pairwise(*values: Iterable[Any]) -> list[tuple]:
    """Rows of one value per axis in which every two values of two axes meet at least once."""
    axes = [list(axis) for axis in values]

    def pairs(row: dict[int, int]) -> set[tuple[int, int, int, int]]:
        return {(i, row[i], j, row[j]) for i, j in combinations(sorted(row), 2)}

    left = [
        (i, a, j, b)
        for i, j in combinations(range(len(axes)), 2)
        for a in range(len(axes[i]))
        for b in range(len(axes[j]))
    ]
    rows = []
    while left:
        i, a, j, b = left[0]
        row, open_pairs = {i: a, j: b}, set(left)
        for k in set(range(len(axes))) - {i, j}:
            row[k] = max(
                range(len(axes[k])), key=lambda v, k=k: len(pairs({**row, k: v}) & open_pairs)
            )
        made = pairs(row)
        left = [pair for pair in left if pair not in made]
        rows.append(tuple(axis[row[k]] for k, axis in enumerate(axes)))
    return rows


def rotated(first: Iterable[Any], *others: Iterable[Any]) -> list[tuple]:
    """Rows in which every value of the first comes once or more, beside the others' pairwise rows in turn."""
    firsts, axes = list(first), [list(axis) for axis in others]
    rows = pairwise(*axes) if len(axes) > 1 else [(value,) for value in axes[0]]
    count = max(len(firsts), len(rows))
    return [(firsts[i % len(firsts)], *rows[i % len(rows)]) for i in range(count)]
