"""Completes a task from the user's own data: columns by their names, labels, prompts and splits."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from zo.tasks.config import AUTO, TaskConfig, TaskError
from zo.tasks.conversations import JOINED, holds_conversations, parts_of
from zo.tasks.reading import SPLITS, read_split, split_names
from zo.tasks.rows import UNNAMED, Rows, Written
from zo.tasks.templates import MASK, columns, is_text, shown, task_columns, typed

COLUMNS = {
    "text": ("text", "sentence", "review", "content", "comment", "body", "message", "tweet", "question", "input"),
    "label": ("label", "labels", "class", "category", "target", "sentiment", "rating", "stars", "y"),
    "prompt": ("prompt", "instruction", "question", "input", "query", "source", "text"),
    "completion": ("completion", "response", "answer", "output", "target", "summary"),
    "messages": ("messages", "conversation", "conversations", "chat"),
}  # fmt: skip
"""Key of the task -> names of columns for it, the preferred first."""

TAKEN = {"validation_split": SPLITS["validation"], "test_split": ("test",)}
"""Key of the task -> names of splits for it, the preferred first."""

IDENTIFIERS = ("id", "idx", "uid", "guid")

MOST_LABELS = 100
"""Most classes; a column with more different labels has numbers or texts."""

SHOWN = 8
"""Labels that a message lists."""


def complete(task: TaskConfig) -> tuple[TaskConfig, list[str]]:
    """Returns the task completed from the data, and a sentence about each thing that was found.

    Raises:
        TaskError: If the data cannot be loaded or something cannot be found in them.
    """
    if task.generated_by():
        return task, [f"{task.path}: problems and scorer of reasoning-gym, prompt {task.prompt!r}"]
    if not _incomplete(task):
        return task, []
    task = _with_splits(task)
    rows = read_split(task, task.train_split)
    if not len(rows):
        raise TaskError(f"task.path: split {task.train_split!r} of {task.path} has no rows")
    notes = [*rows.notes, *_duplicates(rows)]
    if task.kind == "classification":
        task = _classification(task, rows)
        pairs = zip(task.labels or (), task.words, strict=True)
        named = ", ".join(f"{label!r} is {word!r}" for label, word in list(pairs)[:SHOWN])
        text = task.prompt if task.messages is None else task.messages
        found = f"text {text!r}, label {task.label!r}; {named}"
        notes += _alike(task)
    else:
        task = _completion(task, rows)
        parts = ("messages", "prompt", "completion")
        found = ", ".join(f"{key} {value!r}" for key in parts if (value := getattr(task, key)))
    return task, [f"{task.path}: {found}", *notes, *_unused(task, rows)]


def _incomplete(task: TaskConfig) -> bool:
    """Returns whether something of the task must be found in the data."""
    if AUTO in (task.validation_split, task.test_split):
        return True
    if task.kind == "classification":
        return None in (task.prompt or task.messages, task.candidates, task.label)
    if task.messages is not None:
        return False
    return task.prompt is None or (task.kind == "completion" and task.completion is None)


def _with_splits(task: TaskConfig) -> TaskConfig:
    """Returns the task with ``auto`` splits replaced by those that the data have."""
    wanted = [key for key in TAKEN if getattr(task, key) == AUTO]
    if not wanted:
        return task
    there = split_names(task)
    found = {k: next((n for n in TAKEN[k] if n in there), None) for k in wanted}
    if task.train_split not in there and len(there) == 1:
        found["train_split"] = there[0]
    return replace(task, **found)  # type: ignore[arg-type]


def _classification(task: TaskConfig, rows: Rows) -> TaskConfig:
    label = task.label or _find(rows, "label", "the true label")
    text = task.text or task.prompt or task.messages
    if text is None:
        text = _find(rows, "text", "", label) or _find(rows, "messages", "", label)
    text = text or _find(rows, "text", "the text", label)
    labels, words = _labels(task, rows, label)
    given: dict[str, Any] = {"label": label, "labels": task.labels or labels}
    given["candidates"] = task.candidates
    if task.candidates is None:
        given["candidates"] = [" " + _escaped(word) for word in words]
    if len(given["candidates"]) != len(given["labels"]):
        raise TaskError(
            f"task.candidates: {len(given['candidates'])} given, but the label {label!r} has"
            f" {len(labels)} values: {', '.join(map(repr, labels[:SHOWN]))}"
        )
    column = text.strip("{}")
    if column in rows.names and holds_conversations(rows, column):
        given |= {"messages": column, "prompt": None}
    elif task.prompt is None:
        text = _template(text)
        given["prompt"] = f"{text}\nLabel:"
        if task.masked_prompt is None:
            given["masked_prompt"] = f"{text} Label: {MASK} ."
    if task.label_words is None:
        given["label_words"] = [
            w.replace("{{", "{").replace("}}", "}") for w in given["candidates"]
        ]
    return replace(task, text=None, **given)


def _labels(task: TaskConfig, rows: Rows, label: str) -> tuple[list[Any], list[str]]:
    """Returns the labels in the data, sorted, and the name of each."""
    if label not in rows.names:
        columns = ", ".join(sorted(rows.names))
        raise TaskError(f"task.label: the data have no column {label!r}, only {columns}")
    if names := rows.classes.get(label):
        return list(range(len(names))), [str(name).strip() for name in names]
    values = [v for v in rows.values(label) if v is not None and v == v and shown(v).strip()]
    if other := [type(value).__name__ for value in values if not is_text(value)]:
        raise TaskError(f"task.label: {label!r} holds a {other[0]}; a column with texts is needed")
    by_text = {shown(value) if isinstance(value, Written) else value: value for value in values}
    distinct = sorted(by_text, key=lambda v: (isinstance(v, str), v))
    if len(distinct) > MOST_LABELS:
        raise TaskError(
            f"task.label: {label!r} has {len(distinct)} different values, more than {MOST_LABELS}; name the column"
            " with the classes as task.label=..., or use task=completion for free texts"
        )
    if 2 < len(distinct) == len(values):
        raise TaskError(
            f"task.label: {label!r} has another value in each of {len(values)} rows, so no class has two; name the"
            " column with the classes as task.label=..., or use task=completion for free texts"
        )
    if len(distinct) < 2:
        only = f"all {len(values)} rows are {distinct[0]!r}" if distinct else "no row has one"
        raise TaskError(f"task.label: {label!r}: {only}; two classes are needed")
    return distinct, [_word(value) for value in distinct]


def _word(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return shown(value).strip()


def _completion(task: TaskConfig, rows: Rows) -> TaskConfig:
    """Returns the task with its prompt and completion, or with the column of conversations."""
    if task.prompt is None and task.text is None and task.messages is None:
        messages = _find(rows, "messages", "")
        if messages:
            return replace(task, messages=messages)
    if task.messages is not None:
        return task
    prompt = task.prompt or _template(task.text or _find(rows, "prompt", "the prompt"))
    column = prompt.strip("{}")
    of_messages = column in rows.names and holds_conversations(rows, column)
    if task.kind == "prompts" and of_messages:
        return replace(task, messages=column, prompt=None, text=None)
    if task.kind == "prompts":
        return replace(task, prompt=prompt, text=None)
    if task.references is not None and task.completion is None:
        return replace(task, prompt=prompt, completion=" {reference}", text=None)
    what = "what follows the prompt"
    completion = task.completion or _find(rows, "completion", what, but=column)
    if of_messages:
        messages = JOINED.join([column, completion.strip("{}")])
        return replace(task, messages=messages, prompt=None, completion=None, text=None)
    return replace(task, prompt=prompt, completion=_template(completion), text=None)


def _find(rows: Rows, key: str, what: str, but: str | None = None) -> str:
    """Returns the column whose name fits a key; an empty text if there is none and `what` is empty."""
    there = {name.strip().lower(): name for name in rows.names if name != but}
    found = next((there[name] for name in COLUMNS[key] if name in there), "")
    if found or not what:
        return found
    if but and len(there) == 1:
        return next(iter(there.values()))
    first = next((name for name in rows.names if name != but), rows.names[0])
    raise TaskError(
        f"task.{key}: none of the columns {', '.join(rows.names)} is called {', '.join(COLUMNS[key][:4])}, ...;"
        f" name the one with {what}, as {typed(key, first)}"
    )


def _template(text: str) -> str:
    """Returns a template; a column's name becomes `{name}`."""
    return text if "{" in text else f"{{{text}}}"


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _unused(task: TaskConfig, rows: Rows) -> list[str]:
    """Returns a warning about unused columns, if there are any."""
    named = [*task_columns(task), *(task.where or ()), str(task.label), str(task.references)]
    used = {rows.column(name) for name in (*named, *parts_of(task.messages, rows.names))}
    unused = [c for c in rows.names if c not in used and c.lower() not in IDENTIFIERS]
    unused = [c for c in unused if not c.startswith(UNNAMED)]
    if not unused:
        return []
    if task.kind == "prompts":
        return [f"reward functions get the columns {', '.join(unused)}, too, by their names"]
    if task.messages is not None:
        return [f"task.messages: columns that are not used: {', '.join(unused)}"]
    named = [*columns(str(task.prompt), "prompt"), *unused[:1]]
    joined = " ".join(f"{{{name}}}" for name in named)
    return [
        f"task.prompt: columns that are not used: {', '.join(unused)}; {typed('text', joined)} joins them"
    ]


def _alike(task: TaskConfig) -> list[str]:
    """Returns a warning for labels that differ only in case or spaces."""
    alike = defaultdict(list)
    for label in task.labels or ():
        alike[shown(label).strip().casefold()].append(repr(label))
    return [
        f"task.label: {' and '.join(of)} are classes of their own; write them alike if they are one"
        for of in alike.values()
        if len(of) > 1
    ]


def _duplicates(rows: Rows) -> list[str]:
    """Returns a warning if a column of identifiers has duplicates: a row may then train and test."""
    for column in rows.names:
        if column.lower() in IDENTIFIERS:
            values = list(map(shown, rows.values(column)))
            twice = Counter(values)
            first = next((i for i, value in enumerate(values) if twice[value] > 1), None)
            if first is not None:
                count = sum(n - 1 for n in twice.values())
                return [
                    f"task.path: {count} rows have the {column} of another one (the first is {values[first]} in row"
                    f" {rows.numbers[first]}, counted from 0); all are used, take copies out of the file"
                ]
    return []
