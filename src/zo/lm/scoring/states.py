"""Hidden states that enter the first block that trains, kept for every token of a run's examples.

They depend on an example's own tokens alone. Each example is computed alone, in one layout, when it is first needed: no
number depends on which batch came first, on an interruption, or on the number of processes. A batch in any layout takes
the states of its tokens from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from zo.tasks.prompts import Encoded


class KeptStates:
    """Memory for the states of some splits; row 0 is that of padding, zeros.

    Args:
        splits: Their examples, the very objects that batches are made of.
        width: Of a state.
        like: Has the dtype and device of states.

    Attributes:
        bytes: Size of the memory.
        dtype: Of states.
        tokens: Of all examples.
    """

    def __init__(self, splits: Iterable[Sequence[Encoded]], width: int, like: Tensor) -> None:
        self._examples = [example for split in splits for example in split]  # their ids stay theirs
        self._first: dict[int, int] = {}
        rows = 1
        for example in self._examples:
            self._first[id(example)] = rows
            rows += example.length
        self._there: set[int] = set()
        self._states = torch.empty(rows, width, dtype=like.dtype, device=like.device)
        self._states[0] = 0
        self.dtype, self.tokens = like.dtype, rows - 1
        self.bytes = self._states.numel() * self._states.element_size()

    def is_of(self, splits: Iterable[Sequence[Encoded]]) -> bool:
        """Returns whether these are the states of some splits' examples, the very objects."""
        examples = [example for split in splits for example in split]
        pairs = zip(self._examples, examples, strict=False)
        return len(examples) == len(self._examples) and all(a is b for a, b in pairs)

    def first(self, example: Encoded) -> int | None:
        """Returns the row of an example's first token; None of an example of other splits."""
        return self._first.get(id(example))

    def missing(self, examples: Iterable[Encoded]) -> list[Encoded]:
        """Returns those of the splits' examples that were not yet computed."""
        known = (example for example in examples if id(example) in self._first)
        return [example for example in known if id(example) not in self._there]

    def put(self, example: Encoded, states: Tensor, places: Tensor) -> None:
        """Keeps an example's states.

        Args:
            example: The example.
            states: Of its rows.                                              # (P, L, D)
            places: Of each token here, 0 of padding. Of tokens with the same place the first counts.   # (P, L)
        """
        taken = dict[int, int]()
        for at, place in enumerate(places.flatten().tolist()):
            if place:
                taken.setdefault(place, at)
        index = torch.tensor([[*taken], [*taken.values()]], device=states.device)
        self._states[index[0]] = states.flatten(0, 1)[index[1]]
        self._there.add(id(example))

    def of(self, places: Tensor) -> Tensor:
        """Returns the states of the tokens with these places, (P, L).  # (P, L, D)."""
        return self._states.index_select(0, places.flatten()).view(*places.shape, -1)
