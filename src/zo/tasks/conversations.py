"""Conversations from columns of messages: lists of ``{role, content}``, ShareGPT's format, several columns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.rows import Rows
from zo.tasks.templates import is_text, shown

ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's name of a role -> ours

KEYS = {"role", "content"}, {"role", "tool_calls"}, {"from", "value"}
"""Of a message, of one that calls tools, and of one of ShareGPT's."""

TOOLS = "tools"
"""Column with the tools that a conversation may call, which its chat template writes."""

MARK = "\ue000"  # Takes the place of a message's text where its end is looked for
TOOL_CALLS = "tool_calls"
UNSHOWN = ("role", "content", "weight", "id", "tool_call_id")  # Keys that a template need not write
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
UNCLEAR = "the chat template does not show where the assistant's messages end; give one with generation blocks"

JOINED = " + "  # Separator of the columns in `task.messages` that together form a conversation


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


def conversations(
    task: TaskConfig, rows: Rows, key: str = "messages"
) -> list[list[dict[str, Any]]]:
    """Returns the conversation of each row, from the columns that a key names; of prompts from the first column.

    Raises:
        TaskError: If a row has none, or a message is not text; names the row.
    """
    columns = parts_of(str(getattr(task, key)), rows.names)
    columns = columns if task.kind in ("completion", "preference") else columns[:1]
    for column in columns:
        rows.require(column, key)
    cells = map(rows.values, columns)
    every = zip(rows.indices.tolist(), *cells, strict=True)
    found = {row: _joined(of, row, key) for row, *of in every}
    for row, turns in found.items():
        if any(turn.get("weight") == 0 for turn in (turns if task.turns == "all" else turns[-1:])):
            raise TaskError(
                f"task.{key}: row {row}, counted from 0, has a message of weight 0, which task.turns={task.turns} would"
                " train; take the message or its weight out"
            )
    return [*found.values()]


def tools_of(rows: Rows) -> list[Any]:
    """Returns the tools of each row, as lists or as json; None without. Raises TaskError for something else."""
    found = []
    for row, cell in zip(rows.indices.tolist(), rows.values(TOOLS), strict=True):
        with suppress(ValueError):
            cell = json.loads(cell) if isinstance(cell, str) and cell.strip() else cell or None
        if cell is not None and not isinstance(cell, list):
            what = f"has no list in its column {TOOLS!r}"
            raise TaskError(f"task.messages: row {row}, counted from 0, {what}")
        found.append(_without_none(cell) or None)
    return found


def _without_none(value: Any) -> Any:
    """Returns nested data without keys whose value is None, which a file of columns adds."""
    if isinstance(value, list):
        return [_without_none(of) for of in value]
    if isinstance(value, Mapping):
        return {key: _without_none(of) for key, of in value.items() if of is not None}
    return value


def _joined(cells: Sequence[Any], row: int, key: str) -> list[dict[str, Any]]:
    """Returns a row's columns as one conversation; a text after the first column is the assistant's message."""
    found = []
    for i, cell in enumerate(cells):
        turns = [{"role": "assistant", "content": cell}] if i and isinstance(cell, str) else cell
        if not is_conversation(turns):
            what = "has no list of {role, content}; rows count from 0"
            raise TaskError(f"task.{key}: row {row} {what}")
        found += [_message(turn, row) for turn in turns]
    return found


def _message(turn: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Returns a message with its role and its text; parts of type text are joined."""
    if "role" not in turn:
        turn = {"role": turn["from"], "content": turn["value"]}
    role = str(turn["role"]).lower()  # a template leaves out messages of another role's name
    turn = {**turn, "role": ROLES.get(role, role)}
    content = turn.get("content")
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
    if TOOL_CALLS not in turn:
        return {**turn, "content": content}
    return {**_without_none(turn), "content": content}


def is_empty(turn: Mapping[str, Any]) -> bool:
    """Returns whether a message has neither text nor calls of tools."""
    return not str(turn.get("content") or "").strip() and not turn.get(TOOL_CALLS)


def rendered(tokenizer: Any, turns: Sequence[Any], tools: Any, asks: bool = False) -> str:
    """Returns messages as the tokenizer's chat template writes them, before an answer if it `asks`."""
    given = {
        "tokenize": False,
        "add_generation_prompt": asks,
        **({"tools": tools} if tools else {}),
    }
    return str(tokenizer.apply_chat_template(turns, **given))


def left_out(
    render: Callable[[Sequence[Any], Any], str], turns: Sequence[Any], tools: Any, text: str
) -> tuple[str, ...]:
    """Returns what a chat template leaves out: the last message's `content`, other keys of messages, `tools`.

    Args:
        render: Writes messages and tools.
        turns: The messages.
        tools: Their tools.
        text: What it writes of them.

    Raises:
        ValueError: It quotes a call's arguments, which are JSON text, once more.
    """
    for call in (call for turn in turns for call in turn.get(TOOL_CALLS) or ()):
        given = call.get("function", call).get("arguments") if isinstance(call, Mapping) else None
        if isinstance(given, str) and '"' in given and json.dumps(given)[1:-1] in text:
            raise ValueError(
                f"the chat template writes the arguments {given} in quotes; give an object"
            )
    content = "".join(str(turns[-1].get("content") or "").split())
    found = [] if content in "".join(text.split()) else ["content"]
    for key in dict.fromkeys(key for turn in turns for key, value in turn.items() if value):
        if key not in UNSHOWN:
            without = [{k: of for k, of in turn.items() if k != key} for turn in turns]
            with suppress(Exception):  # of a template that needs it
                found += [key] * (render(without, tools) == text)
    return (*found, *["tools"] * bool(tools and render(turns, None) == text))


def trained_tokens(
    tokenizer: Any, turns: Sequence[Any], tools: Any
) -> tuple[list[int], list[bool]]:
    """Returns a conversation's tokens, and whether each is of an assistant's message and its end.

    A template's own `generation` blocks say which are. Another template's messages begin behind what asks for them, and
    end where the next one begins.

    Raises:
        ValueError: If the template does not show where a message is.
    """
    given = {"tools": tools} if tools else {}
    if GENERATION.search(tokenizer.get_chat_template(**given)):
        found = tokenizer.apply_chat_template(
            turns, return_dict=True, return_assistant_tokens_mask=True, verbose=False, **given
        )
        return found["input_ids"], [bool(of) for of in found["assistant_masks"]]
    text = rendered(tokenizer, turns, tools)
    own = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"]
    spans = [_span(tokenizer, turns, tools, i, text) for i in own]
    if any(end > begin for (_, end), (begin, _) in pairwise(spans)):
        raise ValueError(UNCLEAR)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    places = encoded["offset_mapping"]
    trained = [any(a < end and begin < b for begin, end in spans) for a, b in places]
    return encoded["input_ids"], trained


def _span(tokenizer: Any, turns: Sequence[Any], tools: Any, i: int, text: str) -> tuple[int, int]:
    """Returns where message i begins and ends in the text of all."""
    prompt = rendered(tokenizer, turns[:i], tools, asks=True)
    if not text.startswith(prompt):
        raise ValueError("the chat template does not put the answer after the prompt")
    upto = rendered(tokenizer, turns[: i + 1], tools)
    if text.startswith(upto):
        return len(prompt), len(upto)
    # Qwen3's writes a message otherwise where it is the last one. Its end is what follows any text there.
    marked = rendered(tokenizer, [*turns[:i], {**turns[i], "content": MARK}], tools)
    pairs = zip(reversed(upto), reversed(marked), strict=False)
    same = next((n for n, (a, b) in enumerate(pairs) if a != b), 0)
    end = upto[len(upto) - same :].lstrip()
    at = text.find(end, len(prompt))
    if not end or at < 0:
        raise ValueError(UNCLEAR)
    return len(prompt), at + len(end)
