"""Layout of examples in rows: the columns of an example's tokens, and those that predict its candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zo.lm.scoring.packing import Row
from zo.tasks.prompts import Encoded

if TYPE_CHECKING:
    from zo.lm.scoring.states import KeptStates

Columns: TypeAlias = dict[int, list[tuple[int, list[int]]]]
"""Example -> for each candidate its row, and the columns that predict its tokens."""


class Texts(NamedTuple):
    """The part of an example in a row."""

    row: int  # The row
    example: int  # The example
    chosen: list[int]  # Its candidates in the row; empty for a masked model
    # Of the prompt's tokens, and of each chosen candidate's tokens without the last one
    columns: list[list[int]]


@dataclass
class Layout:
    """Positions of the tokens of examples.

    Attributes:
        rows: The rows.
        columns: Rows and columns that predict the candidates' tokens.
        texts: Content of the rows, in the order of insertion.
    """

    rows: list[Row] = field(default_factory=list)
    columns: Columns = field(default_factory=dict)
    texts: list[Texts] = field(default_factory=list)

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
