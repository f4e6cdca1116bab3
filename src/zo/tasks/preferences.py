"""Pairs of answers to one prompt, the preferred one and the rejected one: texts or conversations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.examples import Example
from zo.tasks.templates import fill

NAMES = ["chosen", "rejected"]  # Of a pair's answers, in the order of their tokens


def pair_of(task: TaskConfig, fields: dict[str, Any]) -> tuple[Any, Any]:
    """Returns a row's chosen and rejected answer: texts, or whole conversations."""
    if task.messages is not None:
        return fields[task.messages], fields[str(task.rejected)]
    chosen, rejected = (fill(str(getattr(task, key)), fields, key) for key in NAMES)
    return chosen, rejected


def shared_beginning(chosen: str, rejected: str) -> str:
    """Returns the prompt of two texts that contain it: whole words, without the space before the answers."""
    same = chosen[: _same(chosen, rejected)]
    words = same[: len(same) - len(same.split(" ")[-1].split("\n")[-1])]
    return words.removesuffix(" ")


def shared_turns(chosen: Sequence[Any], rejected: Sequence[Any], row: int) -> list[Any]:
    """Returns the messages that two conversations begin with alike, the prompt. Raises TaskError without any."""
    if not (n := min(_same(chosen, rejected), len(chosen) - 1, len(rejected) - 1)):
        raise TaskError(
            f"task.rejected: row {row}, counted from 0: chosen and rejected begin with different messages; begin both"
            " with the prompt's messages, or give these as task.prompt=COLUMN"
        )
    return [*chosen[:n]]


def _same(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """Returns how many items two sequences begin with alike."""
    pairs = zip(chosen, rejected, strict=False)
    return sum(1 for _ in takewhile(lambda of: of[0] == of[1], pairs))


def check_pairs(task: TaskConfig, split: str, examples: Sequence[Example]) -> None:
    """Raises TaskError if the answers of a pair are equal; names the first row."""
    pairs = [(e.row, *pair_of(task, e.fields)) for e in examples]
    if same := [row for row, *of in pairs if len({str(text).strip() for text in of}) == 1]:
        raise TaskError(
            f"task.rejected: chosen and rejected are equal in {len(same)} of {len(pairs)} rows of split {split!r} (the"
            f" first is row {min(same)}, counted from 0); remove these rows"
        )
