"""Packs texts into rows of tokens: common prefixes are stored once, and texts share rows instead of padding."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Row:
    """Several texts in one row, each computed as if it were alone.

    With a decoder a token sees only the tokens that lead to it, and no later token changes its hidden state. So texts
    share common prefixes: a prompt is stored once for all its candidates, and a common prefix once for all prompts.
    With a masked model a token sees its whole text and no other.

    Attributes:
        ids: the tokens.
        positions: of each token in its text.
    """

    def __init__(self, masked: bool = False) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self._masked = masked
        self._children: dict[tuple[int, int], int] = {}
        # Parent, first column, column behind the last
        self._chains: list[tuple[int, int, int]] = []

    def add(self, tokens: Sequence[int], after: int = -1) -> list[int]:
        """Adds a text, or a continuation of the token in column `after`, to the row; returns its columns."""
        columns, first, parent = [], len(self.ids), after
        begin = self.positions[after] + 1 if after >= 0 else 0
        for position, token in enumerate(tokens, begin):
            column = len(self.ids)
            if not self._masked:
                column = self._children.setdefault((after, token), column)
            if column == len(self.ids):
                self.ids.append(token)
                self.positions.append(position)
            else:
                parent = column
            columns.append(after := column)
        self._chains.append((parent, first, len(self.ids)))
        return columns

    def sees(self) -> NDArray[np.bool_]:
        """Returns whether the token in column i sees the one in column j.  # (n, n).

        It sees what the parent of its chain sees, and the chain: up to itself, with a masked model all of it.
        """
        seen = np.tri(len(self.ids), dtype=np.bool_)
        for parent, first, end in self._chains:
            seen[first:end, :first] = False
            if self._masked:
                seen[first:end, first:end] = True
            elif parent >= 0:
                seen[first:end, : parent + 1] = seen[parent, : parent + 1]
        return seen


def pack(lengths: Sequence[int], shared: int, hidden: int) -> list[list[int]]:
    """Returns which texts share a row, at the lowest cost of a forward pass.

    A layer's matrices cost 12 · hidden² multiplications per token, padding included, and attention
    2 · hidden per token and column; attention is counted twice, as its kernels reach about half the
    matrices' rate. Every number of rows is considered, the longest text first into the shortest row; numbers whose
    lower bound is above the best cost so far are not tried.

    Args:
        lengths: Tokens of each text, > 0.
        shared: Tokens of the common prefix, which a row has once, ≥ 0.
        hidden: Width of the model, > 0.

    Returns:
        The indices of each row's texts; every index once.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    own = [lengths[i] - shared for i in order]

    def cost(rows: int, width: int) -> int:
        return rows * width * (3 * hidden + width)

    least, best = math.inf, 0
    for bound, n in sorted((cost(n, shared + w), n) for n, w in enumerate(_narrowest(own), 1)):
        if (bound, n) > (least, best):
            break
        loads = [0] * n
        for tokens in own:
            heapq.heapreplace(loads, loads[0] + tokens)
        least, best = min((least, best), (cost(n, shared + max(loads)), n))
    rows: list[list[int]] = [[] for _ in range(best)]
    shortest = [(0, row) for row in range(best)]
    for i, tokens in zip(order, own, strict=True):
        load, row = shortest[0]
        heapq.heapreplace(shortest, (load + tokens, row))
        rows[row].append(i)
    return [sorted(row) for row in rows]


def _narrowest(own: Sequence[int]) -> list[int]:
    """Returns a lower bound of the longest row's tokens for 1, 2, ... rows."""
    sums = [0, *itertools.accumulate(own)]
    return [
        max(
            own[0],
            -(-sums[-1] // n),
            *(sums[m * n + 1] - sums[m * n - m] for m in range(1, (len(own) - 1) // n + 1)),
        )  # of the first m n + 1 texts one row holds m + 1
        for n in range(1, len(own) + 1)
    ]


def shared_beginning(texts: Sequence[Sequence[int]]) -> int:
    """Returns the number of tokens in the common prefix of all texts."""
    n = min(map(len, texts))
    return next((i for i in range(n) if len({text[i] for text in texts}) > 1), n)
