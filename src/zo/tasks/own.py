"""A user's own data -> a complete task: columns found by name, labels, prompts and splits; everything can be given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zo.tasks.config import AUTO, TaskConfig, TaskError
from zo.tasks.reading import read_split, split_names
from zo.tasks.templates import MASK, columns, task_columns

if TYPE_CHECKING:
    import datasets

COLUMNS = {
    "text": ("text", "sentence", "review", "content", "comment", "body", "message", "tweet", "question", "input"),
    "label": ("label", "labels", "class", "category", "target", "sentiment", "rating", "stars", "y"),
    "prompt": ("prompt", "instruction", "question", "input", "query", "source", "text"),
    "completion": ("completion", "response", "answer", "output", "target", "summary"),
    "messages": ("messages", "conversation", "conversations", "chat"),
}  # fmt: skip
"""Key of the task -> names of columns that are taken for it, the first that is there."""

SPLITS = {
    "validation_split": ("validation", "valid", "val", "dev"),
    "test_split": ("test",),
}
IDENTIFIERS = ("id", "idx", "uid", "guid")

MOST_LABELS = 100
"""Classes at most: more different labels are no classes, but numbers or texts."""

SHOWN = 8
"""Labels in a sentence."""


def complete(task: TaskConfig) -> tuple[TaskConfig, list[str]]:
    """Returns the task with what the data tell of it, and what was found, one sentence each.

    Raises:
        TaskError: If the data are out of reach or something cannot be found in them.
    """
    if task.generated_by():
        return task, [f"{task.path}: problems and scorer of reasoning-gym, prompt {task.prompt!r}"]
    if not _incomplete(task):
        return task, []
    task = _with_splits(task)
    rows, numbers = read_split(task, task.train_split)
    if not len(rows):
        raise TaskError(f"task.path: split {task.train_split!r} of {task.path} has no rows")
    notes = _duplicates(rows, numbers)
    if task.kind == "classification":
        task = _classification(task, rows)
        pairs = zip(task.labels or (), task.words, strict=True)
        shown = ", ".join(f"{label!r} is {word!r}" for label, word in list(pairs)[:SHOWN])
        found = f"text {task.prompt!r}, label {task.label!r}; {shown}"
    else:
        task = _completion(task, rows)
        parts = ("messages", "prompt", "completion")
        found = ", ".join(f"{key} {value!r}" for key in parts if (value := getattr(task, key)))
    return task, [f"{task.path}: {found}", *notes, *_unused(task, rows)]


def _incomplete(task: TaskConfig) -> bool:
    """Returns whether something of the task has to be found in the data."""
    if AUTO in (task.validation_split, task.test_split):
        return True
    if task.kind == "classification":
        return None in (task.prompt, task.candidates, task.label)
    if task.messages is not None:
        return False
    return task.prompt is None or (task.kind == "completion" and task.completion is None)


def _with_splits(task: TaskConfig) -> TaskConfig:
    """Returns the task with the splits that the data have where it has ``auto``."""
    wanted = [key for key in SPLITS if getattr(task, key) == AUTO]
    if not wanted:
        return task
    there = split_names(task)
    found = {k: next((n for n in SPLITS[k] if n in there), None) for k in wanted}
    if task.train_split not in there and len(there) == 1:
        found["train_split"] = there[0]
    return replace(task, **found)  # type: ignore[arg-type]


def _classification(task: TaskConfig, rows: datasets.Dataset) -> TaskConfig:
    label = task.label or _find(rows, "label", "the true label")
    text = _template(task.text or task.prompt or _find(rows, "text", "the text", but=label))
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
    if task.prompt is None:
        given["prompt"] = f"{text}\nLabel:"
        if task.masked_prompt is None:
            given["masked_prompt"] = f"{text} Label: {MASK} ."
    if task.label_words is None:
        given["label_words"] = [
            w.replace("{{", "{").replace("}}", "}") for w in given["candidates"]
        ]
    return replace(task, text=None, **given)


def _labels(task: TaskConfig, rows: datasets.Dataset, label: str) -> tuple[list[Any], list[str]]:
    """Returns the labels that the data have, in their order, and what each is called."""
    if label not in rows.column_names:
        columns = ", ".join(sorted(rows.column_names))
        raise TaskError(f"task.label: the data have no column {label!r}, only {columns}")
    names = getattr(rows.features[label], "names", None)  # a ClassLabel
    if names:
        return list(range(len(names))), [str(name).strip() for name in names]
    values = [v for v in rows[label][:] if v is not None and v == v]
    if any(isinstance(value, list | dict) for value in values):
        raise TaskError(f"task.label: {label!r} holds lists; a column with one label is needed")
    distinct = sorted(set(values), key=lambda v: (isinstance(v, str), v))
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
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def _completion(task: TaskConfig, rows: datasets.Dataset) -> TaskConfig:
    """Returns the task with its prompt and what follows it, or with the column of a conversation."""
    if task.prompt is None and task.text is None and task.messages is None:
        messages = _find(rows, "messages", "")
        if messages:
            return replace(task, messages=messages)
    if task.messages is not None:
        return task
    prompt = task.prompt or _template(task.text or _find(rows, "prompt", "the prompt"))
    if task.kind == "prompts":
        return replace(task, prompt=prompt, text=None)
    if task.references is not None and task.completion is None:
        return replace(task, prompt=prompt, completion=" {reference}", text=None)
    names = [prompt.strip("{}")]
    completion = task.completion or _find(
        rows, "completion", "what follows the prompt", but=names[0]
    )
    return replace(task, prompt=prompt, completion=_template(completion), text=None)


def _find(rows: datasets.Dataset, key: str, what: str, but: str | None = None) -> str:
    """Returns the column that is called as one for this key is; empty if `what` is and there is none."""
    there = {name.strip().lower(): name for name in rows.column_names if name != but}
    found = next((there[name] for name in COLUMNS[key] if name in there), "")
    if found or not what:
        return found
    if but and len(there) == 1:
        return next(iter(there.values()))
    raise TaskError(
        f"task.{key}: none of the columns {', '.join(rows.column_names)} is called {', '.join(COLUMNS[key][:4])}, ...;"
        f" name the one with {what}, as task.{key}={rows.column_names[0]}"
    )


def _template(text: str) -> str:
    """Returns a template; a column's name alone becomes one."""
    return text if "{" in text else f"{{{text}}}"


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _unused(task: TaskConfig, rows: datasets.Dataset) -> list[str]:
    """Returns a sentence about the columns that nothing reads, if there are any."""
    used = {name.partition(".")[0] for name in (*task_columns(task), *(task.where or ()))}
    used |= {str(task.label), str(task.references), str(task.messages)}
    unused = [c for c in rows.column_names if c not in used and c.lower() not in IDENTIFIERS]
    if not unused:
        return []
    if task.kind == "prompts":
        return [f"reward functions get the columns {', '.join(unused)}, too, by their names"]
    if task.messages is not None:
        return [f"task.messages: columns that are not used: {', '.join(unused)}"]
    named = [*columns(str(task.prompt), "prompt"), *unused[:1]]
    joined = " ".join(f"{{{name}}}" for name in named)
    return [
        f"task.prompt: columns that are not used: {', '.join(unused)}; task.text='{joined}' joins them"
    ]


def _duplicates(rows: datasets.Dataset, numbers: Iterable[int]) -> list[str]:
    """Returns a sentence if a column of identifiers has one twice: a row may then train and test."""
    for column in rows.column_names:
        if column.lower() in IDENTIFIERS:
            values = rows[column][:]
            twice = Counter(values)
            first = next((i for i, value in enumerate(values) if twice[value] > 1), None)
            if first is not None:
                count = sum(n - 1 for n in twice.values())
                return [
                    f"task.path: {count} rows have the {column} of another one (the first is {values[first]!r} in row"
                    f" {int(list(numbers)[first])}, counted from 0); all are used, take copies out of the file"
                ]
    return []
