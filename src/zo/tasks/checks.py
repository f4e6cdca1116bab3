"""Examples as tokens -> what a person should know of them before the first step, and the first ones to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.data import Example
from zo.tasks.prompts import Encoded

EXAMPLES = 3
"""Shown before the first step."""

TOKENS = 40
"""Shown at each end of a prompt."""


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


def preview(
    task: TaskConfig, examples: Sequence[Example], encoded: Sequence[Encoded], tokenizer: Any
) -> list[str]:
    """Returns two lines for each of the first examples: its text, and its tokens with their borders."""
    lines = []
    for example, tokens in list(zip(examples, encoded, strict=True))[:EXAMPLES]:
        answer = tokens.candidate_ids[tokens.label] if tokens.candidate_ids else []
        texts = [tokenizer.decode(ids) for ids in (tokens.prompt_ids, answer)]
        lines.append(f"row {example.row}: {shortened(texts[0])!r} -> {texts[1]!r}")
        prompt = "|".join(visible(tokenizer, token) for token in tokens.prompt_ids[-TOKENS:])
        end = "".join(f"[{visible(tokenizer, token)}]" for token in answer[:TOKENS])
        lines.append(f"  {len(tokens.prompt_ids)} + {len(answer)} tokens: {prompt} {end}")
    return lines


def shortened(text: str, most: int = 400) -> str:
    """Returns the text, its middle left out if it is long."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def visible(tokenizer: Any, token: int) -> str:
    """Returns a token's text, its line breaks marked; a part of a letter as the tokenizer names it."""
    text = tokenizer.decode([token])
    if not text or "\ufffd" in text:
        text = str(tokenizer.convert_ids_to_tokens(token))
    return text.replace("\n", "⏎")
