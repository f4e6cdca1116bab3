"""Templates over a row's columns: ``{column}`` or ``{column:function}``, one of the functions in `FIELDS`."""

from __future__ import annotations

import datetime
import re
import shlex
from collections.abc import Callable, Mapping
from numbers import Number
from typing import Any

from zo.tasks.config import TaskConfig, TaskError

MASK = "<mask>"  # The mask in a masked prompt, for every tokenizer

MADE = ("choice", "reference")
"""Columns of templates that are not in the data: a row's choice, and its first reference."""


def unfinished(text: str) -> str:
    """Returns the text without its full stop, for a continuation."""
    return text.rstrip().removesuffix(".")


def continued(text: str) -> str:
    """Returns the text with its first word in lower case, unless that is "I", as a continuation."""
    first, space, rest = text.partition(" ")
    return (first if first == "I" else first.lower()) + space + rest


def connective(text: str) -> str:
    """Returns the connective word for COPA's kind of question. Raises ValueError for another kind."""
    words = {"effect": "so", "cause": "because"}
    if text not in words:
        raise ValueError(f"{text!r} is neither of {', '.join(words)}")
    return words[text]


def highlights(text: str) -> str:
    """Returns ReCoRD's passage with its summary points as a list."""
    return text.replace("@highlight\n", "- ")


def asked(text: str) -> str:
    """Returns the text with a capital letter and one question mark."""
    return text[:1].upper() + text[1:] + ("" if text.endswith("?") else "?")


FIELDS: dict[str, Callable[[str], str]] = {
    function.__name__: function
    for function in (str.strip, str.lower, unfinished, continued, connective, highlights, asked)
}
"""Name -> pure function of a column's text. `strip`: GLUE's sentences end in a space."""


PIECES = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]|[^{}]+")
"""An escaped brace, a column, a single brace, or text."""


def columns(template: str, key: str) -> list[str]:
    """Returns the columns named in a template, each once, in order. Raises TaskError if it is malformed."""
    names = [column for _, column, _ in _parse(template, key) if column is not None]
    return list(dict.fromkeys(names))


def task_columns(task: TaskConfig) -> dict[str, str]:
    """Returns the columns that the task's templates name, each with the key of the first such template.

    Raises:
        TaskError: one is malformed or names no column, or a masked prompt has no mask.
    """
    words = [("candidates", word) for word in task.words]
    after = [("completion", task.completion), ("masked_prompt", task.masked_prompt)]
    if task.messages is None:
        after += [("chosen", task.chosen), ("rejected", task.rejected)]
    if task.masked_prompt is not None and task.masked_prompt.count(MASK) != 1:
        raise TaskError(f"task.masked_prompt: one {MASK} is needed in {task.masked_prompt!r}")
    found: dict[str, str] = {}
    for key, template in (("prompt", task.prompt), *words, *after):
        for column in columns(template or "", key):
            if column not in MADE:
                found.setdefault(column, key)
    for key in ("prompt", "masked_prompt"):
        template = getattr(task, key)
        if template is not None and not any(columns(t, key) for t in (template, *task.words)):
            what = "names no column of the data, as {text} does"
            raise TaskError(f"task.{key}: {template!r} {what}")
    return found


def pieces(template: str, fields: Mapping[str, Any], key: str) -> list[tuple[str, bool]]:
    """Returns a filled template in pieces: text, and whether of a column. Raises TaskError if a function refuses it."""
    found = []
    for literal, column, function in _parse(template, key):
        if literal:
            found.append((literal, False))
        if column is None:
            continue
        text = shown(fields[column])
        if function is not None:
            try:
                text = FIELDS[function](text)
            except ValueError as error:
                raise TaskError(f"task.{key}: {{{column}:{function}}}: {error}") from error
        found.append((text, True))
    return found


def fill(template: str, fields: Mapping[str, Any], key: str) -> str:
    """Returns the template filled with a row's columns. Raises TaskError as `pieces`."""
    return "".join(text for text, _ in pieces(template, fields, key))


def shown(value: Any) -> str:
    """Returns the text of a cell; booleans as csv and json write them."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_text(value: Any) -> bool:
    """Returns whether a template can show a cell: a text, a number or a date."""
    return isinstance(value, str | Number | datetime.date | datetime.time | datetime.timedelta)


def typed(key: str, value: str) -> str:
    """Returns a setting of the task as typed in a shell."""
    escaped = value.replace('"', '\\"')
    return shlex.quote(f"task.{key}={value}" if value.isidentifier() else f'task.{key}="{escaped}"')


def _parse(template: str, key: str) -> list[tuple[str, str | None, str | None]]:
    """Returns triples of literal text, the column after it, and that column's function."""
    found, literal = [], ""
    for piece in PIECES.findall(template):
        if piece in ("{", "}"):
            raise TaskError(f"task.{key}: {template!r} is not a template (a single {piece})")
        if piece in ("{{", "}}"):
            literal += piece[0]
        elif not piece.startswith("{"):
            literal += piece
        else:
            column, _, function = piece[1:-1].rpartition(":")
            if function not in FIELDS:
                column, function = piece[1:-1], ""
            if not column.strip():
                raise TaskError(f"task.{key}: {piece} is not the name of a column in {template!r}")
            found.append((literal, column, function or None))
            literal = ""
    return [*found, (literal, None, None)] if literal else found
