"""Completes a task from the user's own data: columns by their names, labels, prompts and splits."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from zo.tasks.config import AUTO, TaskConfig, TaskError
from zo.tasks.conversations import JOINED, TOOLS, holds_conversations, parts_of
from zo.tasks.labels import alike, check_labels, is_number, plain, same, written_twice
from zo.tasks.reading import SPLITS, read_split, split_names, split_of
from zo.tasks.rows import UNNAMED, Rows, Written
from zo.tasks.templates import MASK, columns, is_text, shown, task_columns, typed

COLUMNS = {
    "text": ("text", "sentence", "review", "content", "comment", "body", "message", "tweet", "question", "input"),
    "label": ("label", "labels", "class", "category", "target", "sentiment", "rating", "stars", "y"),
    "prompt": ("prompt", "instruction", "question", "input", "query", "source", "text"),
    "completion": ("completion", "response", "answer", "output", "target", "summary"),
    "messages": ("messages", "conversation", "conversations", "chat"),
    "chosen": ("chosen", "chosen_response", "preferred"),
    "rejected": ("rejected", "rejected_response", "dispreferred"),
}  # fmt: skip
"""Key of the task -> names of columns for it, the preferred first."""

PROMPTS = ("prompt", "instruction", "question")
"""Columns that are the prompt of preferences; without one of them chosen and rejected contain it."""

TAKEN = {"validation_split": SPLITS["validation"], "test_split": ("test",)}
"""Key of the task -> names of splits for it, the preferred first."""

IDENTIFIERS = ("id", "idx", "uid", "guid")

MOST_LABELS = 100  # Most classes; a column with more different labels has numbers or texts

NO_LABEL = ("nan", "na", "n/a", "#n/a", "<na>", "null", "none", "nil", "-", "?")
"""Words for a missing value, in lower case."""

RARE, PART = 2, 10
"""Classes of at most 2 rows are named if the largest has at least 10 times as many."""

SHOWN = 8  # Labels that a message lists


def completed(task: TaskConfig) -> tuple[TaskConfig, list[str]]:
    """Returns a task completed from the data; see `zo.tasks.data.complete`."""
    task = _with_splits(task)
    rows = read_split(task, task.train_split)
    if not len(rows):
        raise TaskError(f"task.path: split {task.train_split!r} of {task.path} has no rows")
    _check_splits(task, rows)
    for column in columns(_template(task.text), "text") if task.text else ():
        rows.require(column, "text")
    notes = [*rows.notes, *_duplicates(rows)]
    if task.kind == "classification":
        task = _classification(task, rows)
        pairs = list(zip(task.labels or (), task.words, strict=True))[:SHOWN]
        found = f"text {task.messages or task.prompt!r}, label {task.label!r}; "
        found += ", ".join(f"{label!r} is {word!r}" for label, word in pairs)
        notes += [*_alike(task), *_rare(task, rows)]
    else:
        task = (_preference if task.kind == "preference" else _completion)(task, rows)
        parts = ("messages", "prompt", "completion", "chosen", "rejected")
        found = ", ".join(f"{key} {value!r}" for key in parts if (value := getattr(task, key)))
    return task, [f"{task.path}: {found}", *notes, *_unused(task, rows)]


def _check_splits(task: TaskConfig, rows: Rows) -> None:
    """Raises TaskError if a column says of each row whether it trains or tests, and `task.where` chooses none."""
    for column in {*rows.names} - {*(task.where or ()), task.label}:
        values = dict.fromkeys(shown(v) if is_text(v) else "" for v in rows.values(column))
        splits = [split_of(value) for value in list(values)[: SHOWN + 1]]
        if (own := split_of(column)) and sorted(map(plain, values)) in (
            ["0", "1"],
            ["false", "true"],
        ):
            trains = ("1", "true") if own == "train" else ("0", "false")
            splits = ["train" if plain(value) in trains else "held-out" for value in values]
        if len(values) <= SHOWN and all(splits) and "train" in splits and len({*splits}) > 1:
            listed = ", ".join(list(values)[:SHOWN])
            raise TaskError(
                f"task.path: the column {column!r} of {rows.source} says {listed}; write a file for each of them, or"
                f" use the rows of one, as 'task.where={{{column}: {list(values)[splits.index('train')]}}}'"
            )


def _with_splits(task: TaskConfig) -> TaskConfig:
    """Returns the task with ``auto`` splits replaced by those that the data have."""
    wanted = [key for key in TAKEN if getattr(task, key) == AUTO]
    if not wanted:
        return task
    there = split_names(task)
    found = {k: next((n for n in TAKEN[k] if n in there), None) for k in wanted}
    held_out = {*SPLITS["validation"], *SPLITS["test"]}
    if task.train_split not in there and len(there) == 1 and there[0] not in held_out:
        found["train_split"] = there[0]
    return replace(task, **found)  # type: ignore[arg-type]


def _classification(task: TaskConfig, rows: Rows) -> TaskConfig:
    """Returns the task with its label, text and candidates."""
    label = task.label or _find(rows, "label", "the true label")
    text = task.text or task.prompt or task.messages or _named(rows, "text", label)
    text = text or _named(rows, "messages", label) or _find(rows, "text", "the text", label)
    labels, words = _labels(rows, label, task.labels)
    if task.labels is not None:
        of_label = {shown(of): word for of, word in zip(labels, words, strict=True)}
        words = [of_label.get(shown(of), shown(of)) for of in task.labels]
        labels = task.labels
    candidates = task.candidates
    if candidates is None:
        candidates = [" " + word.replace("{", "{{").replace("}", "}}") for word in words]
    if len(candidates) != len(labels):
        raise TaskError(
            f"task.candidates: {len(candidates)} given, but the label {label!r} has"
            f" {len(labels)} values: {', '.join(map(repr, labels[:SHOWN]))}"
        )
    there = [*map(plain, words)]
    for candidate, word in zip(candidates, there, strict=True) if task.labels is None else ():
        if (own := plain(candidate)) != word and own in there:
            raise TaskError(
                f"task.candidates: {candidate!r} stands for the label {word!r}, and {own!r} is another label; give"
                f" them in the order {', '.join(words)}, or task.labels in theirs"
            )
    given: dict[str, Any] = {"label": label, "labels": labels, "text": None}
    given["candidates"] = candidates
    if task.label_words is None:
        given["label_words"] = [w.replace("{{", "{").replace("}}", "}") for w in candidates]
    column = text.strip("{}")
    if column in rows.names and holds_conversations(rows, column):
        given |= {"messages": column, "prompt": None}
    elif task.prompt is None:
        text = _template(text)
        given["prompt"] = f"{text}\nLabel:"
        given["masked_prompt"] = task.masked_prompt or f"{text} Label: {MASK} ."
    return replace(task, **given)


def _labels(rows: Rows, label: str, given: list[Any] | None) -> tuple[list[Any], list[str]]:
    """Returns the labels in the data, sorted, and the name of each; other texts of one number must be given."""
    rows.require(label, "label")
    check_labels(rows.parts, label)
    if names := rows.classes.get(label):
        return list(range(len(names))), [str(name).strip() for name in names]
    values = [v for v in rows.values(label) if v is not None and v == v and shown(v).strip()]
    if other := [type(value).__name__ for value in values if not is_text(value)]:
        raise TaskError(f"task.label: {label!r} holds a {other[0]}; a column with texts is needed")
    if len({isinstance(value, bool) for value in values if not isinstance(value, str)}) > 1:
        raise TaskError(
            f"task.label: {label!r} of {rows.source} is true or false in some rows and a number in others; write the"
            " labels alike"
        )
    if given is None and (one := written_twice(values)):
        raise TaskError(
            f"task.label: {label!r} of {rows.source} has {one[0]!r} and {one[1]!r}, which are one number and two names;"
            " write them alike if they are one class, or give task.labels=[...] with each as a text"
        )
    found = [shown(of) if isinstance(of, Written) else of for of in alike(values).values()]
    distinct = sorted(found, key=lambda v: (isinstance(v, str), v))
    several = ""
    if len(distinct) > MOST_LABELS:
        several = f"{len(distinct)} different values, more than {MOST_LABELS}"
    elif 2 < len(distinct) == len(values):
        several = f"a different value in each of {len(values)} rows, so no class has two"
    if several:
        example = _of_classes(rows, label) or "task.label=..."
        raise TaskError(
            f"task.label: {label!r} has {several}; name the column with the classes, as {example}; or use"
            " task=completion for free texts"
        )
    if len(distinct) < 2:
        only = f"all {len(values)} rows are {distinct[0]!r}" if distinct else "no row has one"
        raise TaskError(f"task.label: {label!r}: {only}; two classes are needed")
    whole = (int(v) if isinstance(v, float) and v.is_integer() else v for v in distinct)
    return distinct, [shown(value).strip() for value in whole]


def _completion(task: TaskConfig, rows: Rows) -> TaskConfig:
    """Returns the task with its prompt and completion, or with the column of conversations."""
    if not (task.prompt or task.text or task.messages):
        task = replace(task, messages=_named(rows, "messages") or None)
    if task.messages is not None:
        return task
    prompt = task.prompt or _template(task.text or _find(rows, "prompt", "the prompt"))
    column = prompt.strip("{}")
    of_messages = column in rows.names and holds_conversations(rows, column)
    task = replace(task, prompt=prompt, text=None)
    if task.kind == "prompts":
        return replace(task, messages=column, prompt=None) if of_messages else task
    if task.references is not None and task.completion is None:
        return replace(task, completion=" {reference}")
    what = "what follows the prompt"
    completion = task.completion or _find(rows, "completion", what, but=column)
    if "label" in rows.names and {*map(plain, rows.values("label"))} == {"true", "false"}:
        raise TaskError(
            f"task.path: the column 'label' of {rows.source} says true or false of each completion;"
            " 'task.where={label: true}' trains on those that are wanted"
        )
    if of_messages:
        messages = JOINED.join([column, completion.strip("{}")])
        return replace(task, messages=messages, prompt=None, completion=None)
    return replace(task, completion=_template(completion))


def _preference(task: TaskConfig, rows: Rows) -> TaskConfig:
    """Returns the task with its pairs: templates of texts, or columns with conversations."""
    chosen = task.chosen or _find(rows, "chosen", "the preferred answer")
    rejected = task.rejected or _find(rows, "rejected", "the other answer")
    given = task.prompt or next((name for name in rows.names if name in PROMPTS), None)
    column = str(given).strip("{}")
    asked = column in rows.names and holds_conversations(rows, column)
    name = chosen.strip("{}")
    if asked or (name in rows.names and holds_conversations(rows, name)):
        before = column + JOINED if asked else ""
        messages, other = (before + of.strip("{}") for of in (chosen, rejected))
        return replace(task, messages=messages, prompt=None, chosen=None, rejected=other)
    names = [column, name, rejected.strip("{}")]
    if {*names} <= {*rows.names}:
        pairs = zip(*(map(shown, rows.values(name)) for name in names), strict=True)
        if all(
            asked and one.startswith(asked) and two.startswith(asked) for asked, one, two in pairs
        ):
            raise TaskError(
                f"task.path: in {rows.source} both answers begin with the prompt, so that it would stand there twice;"
                f" take it out of {chosen} and {rejected}, or take out the column {column}"
            )
    prompt = given and _template(given)
    return replace(task, prompt=prompt, chosen=_template(chosen), rejected=_template(rejected))


def _named(rows: Rows, key: str, but: str | None = None) -> str:
    """Returns the column whose name fits a key; an empty text if there is none."""
    names = [name for name in rows.names if name != but]
    there = {name.strip().lower(): name for name in reversed(names)} | {
        name: name for name in names
    }
    return next((there[name] for name in COLUMNS[key] if name in there), "")


def _find(rows: Rows, key: str, what: str, but: str | None = None) -> str:
    """Returns the column whose name fits a key, or the only one besides `but`; raises TaskError if there is none."""
    left = [name for name in rows.names if name != but]
    if found := _named(rows, key, but) or (left[0] if but and len(left) == 1 else ""):
        return found
    named = [name for name in left if not _is_id(name)] or left or rows.names
    example = typed(key, named[0])
    if key == "label" and (classes := _of_classes(rows, but)):
        example = classes
    if row := [of for of in rows.names if rows.nothing == "" and of in map(shown, rows.values(of))]:
        raise TaskError(
            f"task.path: the first line of {rows.source} is a row, since {row[0]!r} is a value below it, too; begin"
            " the file with the names of the columns"
        )
    raise TaskError(
        f"task.{key}: none of the columns {', '.join(rows.names)} is called {', '.join(COLUMNS[key][:4])}, ...;"
        f" name the one with {what}, as {example}"
    )


def _is_id(column: str) -> bool:
    return column.lower() in IDENTIFIERS or re.search("([_ .-]id|[a-z]I[dD])$", column) is not None


def _of_classes(rows: Rows, but: str | None) -> str:
    """Returns how the column with the fewest different values is typed, and their number; empty if none has few."""
    counts = {}
    for name in rows.names:
        values = [shown(value) for value in rows.values(name) if is_text(value)]
        count = len({*values})
        few = 2 <= count <= MOST_LABELS and (count < len(values) or count == 2)
        if name != but and few and not (_is_id(name) or name.startswith(UNNAMED)):
            counts[name] = count
    if not counts:
        return ""
    best = min(counts, key=lambda name: counts[name])
    return f"{typed('label', best)} ({best!r} has {counts[best]} values)"


def _template(text: str) -> str:
    """Returns a template; a column's name becomes `{name}`."""
    return text if "{" in text else f"{{{text}}}"


def _unused(task: TaskConfig, rows: Rows) -> Iterator[str]:
    """Yields a warning about unused columns, if there are any."""
    named = [*task_columns(task), *(task.where or ()), str(task.label), str(task.references)]
    if task.messages is not None:
        turns = (task.messages, task.rejected)
        named += [TOOLS, *(part for of in turns for part in parts_of(of, rows.names))]
    used = {rows.column(name) for name in named}
    unused = [name for name in rows.names if name not in used]
    unused = [n for n in unused if n.lower() not in IDENTIFIERS and not n.startswith(UNNAMED)]
    listed = ", ".join(unused)
    if unused and (task.kind == "prompts" or task.own_measure):
        who = "the measure gets" if task.own_measure else "reward functions get"
        yield f"{who} the columns {listed}, too, by their names"
    elif unused and task.messages is not None:
        yield f"task.messages: unused columns: {listed}"
    elif unused:
        joined = " ".join(f"{{{n}}}" for n in [*columns(str(task.prompt), "prompt"), unused[0]])
        yield f"task.prompt: unused columns: {listed}; {typed('text', joined)} joins them"


def _alike(task: TaskConfig) -> Iterator[str]:
    """Yields warnings for labels that differ only in case or spaces, are of two kinds, or say that there is none."""
    alike, kinds = defaultdict(list), defaultdict[Any, list[str]](list)
    for label in task.labels or ():
        alike[re.sub(r"(?<=\d),(?=\d{3}\b)", "", shown(label).strip().casefold())].append(
            repr(label)
        )
        kinds[is_number(label)].append(repr(label))
    if len(kinds) == 2 and min(map(len, kinds.values())) > 1:
        alike[""] = [", ".join(of[:SHOWN]) for of in kinds.values()]
    parts = [re.split(r" *[,;|/+&] *", shown(label)) for label in task.labels or ()]
    single = {of[0] for of in parts if len(of) == 1}
    joined = [", ".join(of) for of in parts if len(of) > 1 and single.issuperset(of)]
    for of in joined[:SHOWN]:
        yield f"task.label: {of!r} joins other classes and is one of its own; a row has one class"
    for label in task.labels or ():
        if shown(label).strip().casefold() in NO_LABEL:
            yield f"task.label: {label!r} is a class; remove its rows if they have no label"
    for those in alike.values():
        if len(those) > 1:
            yield f"task.label: {' and '.join(those)} are separate classes; write them alike if they are one"


def _rare(task: TaskConfig, rows: Rows) -> Iterator[str]:
    """Yields a warning for classes of one or two rows among much larger ones: often a header or a total."""
    counts = Counter[Any]()
    for value, count in Counter(rows.values(str(task.label))).items():
        counts[same(value)] += count
    most = max(counts.values())
    each = [(of, counts[same(of)]) for of in task.labels or ()]
    found = [f"{of!r} ({n})" for of, n in each if 0 < n <= RARE and n * PART <= most]
    if found:
        named = ", ".join(found[:SHOWN])
        yield f"task.label: classes of at most {RARE} rows: {named}; take out headers and totals"


def _duplicates(rows: Rows) -> Iterator[str]:
    """Yields a warning for each column of identifiers with duplicates: a row may then train and test."""
    for column in (name for name in rows.names if name.lower() in IDENTIFIERS):
        values = [*map(shown, rows.values(column))]
        counts = Counter(values)
        first = next((i for i, value in enumerate(values) if counts[value] > 1), None)
        if first is not None:
            yield (
                f"task.path: {len(values) - len(counts)} rows repeat the {column} of another row (the first is"
                f" {values[first]} in row {rows.indices[first]}, counted from 0); all are used, so remove copies from"
                " the file"
            )
