"""Conversations from columns of messages: lists of ``{role, content}``, ShareGPT's format, several columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.rows import Rows
from zo.tasks.templates import is_text, shown

ROLES = {"human": "user", "gpt": "assistant"}
"""ShareGPT's name of a role -> ours."""

KEYS = {"role", "content"}, {"from", "value"}
"""Of a message, and of one of ShareGPT's."""

JOINED = " + "
"""Separator of the columns in `task.messages` that together form a conversation."""


def is_conversation(value: Any) -> bool:
    """Returns whether a cell is a list of messages."""
    messages = value if isinstance(value, list) else []
    known = (isinstance(m, Mapping) and any(keys <= m.keys() for keys in KEYS) for m in messages)
    return bool(messages) and all(known)


def holds_conversations(rows: Rows, column: str) -> bool:
    """Returns whether a column's first cell with a value is a list of messages."""
    return is_conversation(next((v for v in rows.values(column) if v is not None), None))


def parts_of(messages: str | None, names: Sequence[str]) -> list[str]:
    """Returns the columns that `task.messages` names: one, or several with ``+`` between them."""
    if messages is None:
        return []
    return [messages] if messages in names else messages.split(JOINED)


def conversations(task: TaskConfig, rows: Rows) -> list[list[dict[str, Any]]]:
    """Returns the conversation of each row; for tasks of prompts that of the first column.

    Raises:
        TaskError: If a row has none, or a message is not text; names the row.
    """
    columns = parts_of(str(task.messages), rows.names)
    columns = columns if task.kind == "completion" else columns[:1]
    for column in columns:
        rows.require(column, "messages")
    cells = map(rows.values, columns)
    return [_joined(of, row) for row, *of in zip(rows.numbers.tolist(), *cells, strict=True)]


def _joined(cells: Sequence[Any], row: int) -> list[dict[str, Any]]:
    """Returns a row's columns as one conversation; a text after the first column is the assistant's message."""
    found = []
    for i, cell in enumerate(cells):
        turns = [{"role": "assistant", "content": cell}] if i and isinstance(cell, str) else cell
        if not is_conversation(turns):
            raise TaskError(
                f"task.messages: row {row} has no list of {{role, content}}; rows count from 0"
            )
        found += [_message(turn, row) for turn in turns]
    return found


def _message(turn: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Returns a message with its role and its text; parts of type text are joined."""
    if not {"role", "content"} <= turn.keys():
        turn = {"role": ROLES.get(turn["from"], turn["from"]), "content": turn["value"]}
    content = turn["content"]
    if isinstance(content, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content
    ):
        content = "".join(part["text"] for part in content)
    elif is_text(content):
        content = shown(content)
    elif content is not None:
        raise TaskError(
            f"task.messages: row {row}, counted from 0, has a message whose content is no text; give text, or parts"
            " of type text"
        )
    return {**turn, "content": content}
