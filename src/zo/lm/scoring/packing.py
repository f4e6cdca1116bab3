"""Packs texts into rows of tokens: common prefixes are stored once, and texts share rows instead of padding.

A layout has the columns of the tokens of examples, and those that predict their candidates.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zo.tasks.prompts import Encoded

if TYPE_CHECKING:
    from zo.lm.scoring.states import KeptStates

Columns: TypeAlias = dict[int, list[tuple[int, list[int]]]]
"""Example -> for each candidate its row, and the columns that predict its tokens."""


class Row:
    """Several texts in one row, each computed as if it were alone.

    With a decoder a token sees only the tokens that lead to it, and no later token changes its hidden state. So texts
    share common prefixes: a prompt is stored once for all its candidates, and a common prefix once for all prompts.
    With a masked model a token sees its whole text and no other.
    """

    def __init__(self, masked: bool = False) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []  # of each token in its text
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
    """Returns which texts share a row, as indices, at the lowest cost of a forward pass.

    A layer's matrices cost 12 · hidden² multiplications per token, padding included, and attention
    2 · hidden per token and column; attention is counted twice, as its kernels reach about half the
    matrices' rate. Every number of rows is considered, the longest text first into the shortest row; numbers whose
    lower bound is above the best cost so far are not tried.

    `lengths` are tokens of each text, > 0; a row has the `shared` tokens of their common prefix once; `hidden` is the
    model's width.
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


class Texts(NamedTuple):
    """The part of an example in a row."""

    row: int  # The row
    example: int  # The example
    chosen: list[int]  # Its candidates in the row; empty for a masked model
    # Of the prompt's tokens, and of each chosen candidate's tokens without the last one
    columns: list[list[int]]


@dataclass
class Layout:
    """Positions of the tokens of examples."""

    rows: list[Row] = field(default_factory=list)
    columns: Columns = field(default_factory=dict)  # That predict the candidates' tokens
    texts: list[Texts] = field(default_factory=list)  # Of the rows, in the order of insertion

    def put(self, example: Encoded, b: int, p: int, chosen: list[int]) -> list[list[int]]:
        """Adds prompt and chosen candidates of example `b` to row `p`; returns the columns that predict each."""
        row = self.rows[p]
        prompt = row.add(example.prompt_ids)
        if example.mask_at is not None:
            self.texts.append(Texts(p, b, [], [prompt]))
            return [[prompt[example.mask_at]]] * len(chosen)
        last = prompt[-1]
        own = [row.add(example.candidate_ids[c][:-1], after=last) for c in chosen]
        self.texts.append(Texts(p, b, chosen, [prompt, *own]))
        return [[last, *columns] for columns in own]

    def places(
        self, kept: KeptStates, examples: Sequence[Encoded], width: int
    ) -> dict[str, NDArray[np.int64]]:
        """Returns the `places` of `zo.lm.scoring.collate.Batch`; empty if an example's states are not kept.

        A token that several examples share has the row of the first one.
        """
        firsts = [first for e in examples if (first := kept.first(e)) is not None]
        if len(firsts) < len(examples):
            return {}
        places = np.zeros((len(self.rows), width), np.int64)
        own = [_own_columns(example) for example in examples]
        for p, b, chosen, columns in reversed(self.texts):
            prompt, *candidates = own[b]
            for there, here in zip(
                columns, [prompt, *(candidates[c] for c in chosen)], strict=True
            ):
                places[p, there] = np.array(here, np.int64) + firsts[b]
        return {"places": places}


def shared(examples: Sequence[Encoded], groups: Sequence[Sequence[int]], masked: bool) -> Layout:
    """Returns rows that groups of examples share."""
    layout = Layout([Row(masked) for _ in groups])
    for p, group in enumerate(groups):
        for b in group:
            every = list(range(len(examples[b].candidate_ids)))
            columns = layout.put(examples[b], b, p, every)
            layout.columns[b] = [(p, of_one) for of_one in columns]
    return layout


def one_each(examples: Sequence[Encoded], masked: bool, shares: bool = True) -> Layout:
    """Returns rows of one text each; if it `shares`, a candidate that is a prefix of another one shares its row."""
    layout = Layout()
    for b, example in enumerate(examples):
        given = example.candidate_ids
        own: list[list[int]] = []  # the candidates of each row, longest first
        for c in sorted(range(len(given)), key=lambda c: -len(given[c])):
            text = given[c][:-1]
            fits = (row for row in own if given[row[0]][: len(text)] == text)
            if not shares or (row := next(fits, None)) is None:
                own.append([c])
            else:
                row.append(c)
        found: dict[int, tuple[int, list[int]]] = {}
        for chosen in own:
            layout.rows.append(Row(masked))
            p = len(layout.rows) - 1
            columns = layout.put(example, b, p, chosen)
            found |= {c: (p, of_one) for c, of_one in zip(chosen, columns, strict=True)}
        layout.columns[b] = [found[c] for c in range(len(given))]
    return layout


def _own_columns(example: Encoded) -> list[list[int]]:
    """Returns the columns of an example's prompt and candidates in a row of its own."""
    alone = Layout([Row(example.mask_at is not None)])
    alone.put(example, 0, 0, list(range(len(example.candidate_ids))))
    return alone.texts[0].columns
