"""Examples -> tokens, for every kind of model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.data import Example
from zo.tasks.masked import encode_masked
from zo.tasks.prompts import Encoded, encode


def tokenize(
    task: TaskConfig, tokenizer: Any, examples: Sequence[Example], kind: str
) -> list[Encoded]:
    """Returns the examples as tokens.

    Raises:
        TaskError: If the task is not one for this kind of model, or as `encode` and `encode_masked`.
    """
    if kind != "masked":
        return encode(task, tokenizer, examples, kind)
    if task.kind != "classification":
        raise TaskError(f"task.kind={task.kind}: a masked model writes no text; use a decoder")
    return encode_masked(task, tokenizer, examples)
