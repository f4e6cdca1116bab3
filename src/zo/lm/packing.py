"""Texts in rows of tokens: what begins alike stands there once, and rows share what would be padding."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Row(ABC):
    """Texts behind each other in one row, each as if it stood there alone.

    Attributes:
        ids: the tokens.
        positions: of each token in its text.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []

    @abstractmethod
    def add(self, tokens: Sequence[int]) -> list[int]:
        """Put a text into the row; the columns of its tokens."""

    @abstractmethod
    def sees(self) -> NDArray[np.bool_]:
        """Whether the token in column i sees the one in column j.  # (n, n)."""


class Tree(Row):
    """Of a decoder: a token sees what leads to it, and texts that begin alike share their beginning.

    With n tokens before it, whatever stands behind a token, its hidden state is the same: so a
    prompt is there once for all its candidates, and what all prompts begin with once for all.
    """

    def __init__(self) -> None:
        super().__init__()
        self._children: dict[tuple[int, int], int] = {}
        self._chains: list[
            tuple[int, int, int]
        ] = []  # parent, first column, column behind the last

    def add(self, tokens: Sequence[int], after: int = -1) -> list[int]:
        """Put a text into the row, or what follows the token in column `after`; the columns."""
        columns, first, parent = [], len(self.ids), after
        begin = self.positions[after] + 1 if after >= 0 else 0
        for position, token in enumerate(tokens, begin):
            column = self._children.setdefault((after, token), len(self.ids))
            if column == len(self.ids):
                self.ids.append(token)
                self.positions.append(position)
            else:
                parent = column
            columns.append(after := column)
        self._chains.append((parent, first, len(self.ids)))
        return columns

    def sees(self) -> NDArray[np.bool_]:
        """A token sees what the parent of its chain sees, and the chain up to itself."""
        seen = np.tri(len(self.ids), dtype=np.bool_)
        for parent, first, end in self._chains:
            seen[first:end, :first] = False
            if parent >= 0:
                seen[first:end, : parent + 1] = seen[parent, : parent + 1]
        return seen


class Blocks(Row):
    """Of a masked model: a token sees its whole text and no other."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[int] = []

    def add(self, tokens: Sequence[int]) -> list[int]:
        """Put a text behind the others."""
        first = len(self.ids)
        self.ids += tokens
        self.positions += range(len(tokens))
        self._texts += [first] * len(tokens)
        return list(range(first, len(self.ids)))

    def sees(self) -> NDArray[np.bool_]:
        """Tokens of one text see each other."""
        texts = np.array(self._texts)
        return texts[:, None] == texts


def pack(lengths: Sequence[int], shared: int, hidden: int) -> list[list[int]]:
    """Distribute texts over rows so that a forward pass costs least.

    A layer's matrices cost 12 · hidden² multiplications per token, padding included, and attention
    2 · hidden per token and column; attention is counted twice, as its kernels reach about half the
    matrices' rate.

    Args:
        lengths: tokens of each text, > 0.
        shared: tokens that all texts begin with and a row holds once, >= 0.
        hidden: width of the model, > 0.

    Returns:
        The indices of each row's texts; every index once.
    """
    longest, best, least = max(lengths), [list(range(len(lengths)))], float("inf")
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for n in range(1, len(lengths) + 1):
        rows: list[list[int]] = [[] for _ in range(n)]
        loads = [(shared, row) for row in range(n)]
        for i in order:
            load, row = loads[0]
            heapq.heapreplace(loads, (load + lengths[i] - shared, row))
            rows[row].append(i)
        width = max(loads)[0]
        cost = n * width * (3 * hidden + width)
        if cost < least:
            best, least = [sorted(row) for row in rows], cost
        if width == longest:
            break
    return best


def shared_beginning(texts: Sequence[Sequence[int]]) -> int:
    """Tokens that all texts begin with."""
    n = min(map(len, texts))
    return next((i for i in range(n) if len({text[i] for text in texts}) > 1), n)
