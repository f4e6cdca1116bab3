"""Examples as tokens -> what a person should know of them before the first step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.data import Example
from zo.tasks.prompts import Encoded


def check_tokens(
    task: TaskConfig,
    examples: Mapping[str, Sequence[Example]],
    tokens: Mapping[str, Sequence[Encoded]],
) -> list[str]:
    """Returns one sentence for everything about the splits that is probably not meant.

    Raises:
        TaskError: If nothing of the texts is left, or all candidates have the same tokens.
    """
    notes = []
    for split, encoded in tokens.items():
        labels = {e.label for e in encoded}
        if (
            task.kind == "classification"
            and len(labels) == 1 < len(encoded)
            and task.objective == "classification"
        ):
            word = task.words[labels.pop()]
            notes.append(f"task.label: all {len(encoded)} {split} examples are {word!r}")
        rows = [e.row for e in examples[split]]
        if cut := [row for row, e in zip(rows, encoded, strict=True) if e.cut]:
            notes.append(
                f"task.max_length={task.max_length}: {len(cut)} of {len(encoded)} {split} texts are longer and lose"
                f" tokens (the first in the file is row {min(cut)}, counted from 0)"
            )
            if len(cut) == len(encoded) > 1 and len({tuple(e.prompt_ids) for e in encoded}) == 1:
                raise TaskError(
                    f"task.max_length={task.max_length}: nothing of the texts is left; give more"
                )
        same = [
            row
            for row, e in zip(rows, encoded, strict=True)
            if len(set(map(tuple, e.candidate_ids))) < len(e.candidate_ids)
        ]
        if same and len(same) == len(encoded):
            raise TaskError(
                "task.candidates: two of them have the same tokens in every row; change one"
            )
        if same:
            notes.append(
                f"task.candidates: two of them are the same in {len(same)} of {len(encoded)} {split} examples"
                f" (the first in the file is row {min(same)}, counted from 0)"
            )
    return notes
