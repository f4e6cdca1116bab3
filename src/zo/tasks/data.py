"""Training, validation and test examples from the rows of a data set; deterministic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from zo.tasks.config import AUTO, TaskConfig, TaskError
from zo.tasks.examples import Example, Splits
from zo.tasks.labels import check_labels, plain, same
from zo.tasks.prompts import right_choices
from zo.tasks.reading import read_split
from zo.tasks.rows import Rows, Written
from zo.tasks.templates import MADE, columns, is_text, shown, task_columns, typed

SHOWN = 8  # Labels that a message lists
PART = 10  # Without sizes, one row in so many validates and one tests
EXTRA = ("choices", "references")  # Keys of columns that have lists
TEST_SEED = 0  # "at most 1,000 test examples, seed 0": the same ones whatever train_set_seed is


def complete(task: TaskConfig) -> tuple[TaskConfig, list[str]]:
    """Returns the task completed from the data, and a sentence about each thing found. May raise TaskError."""
    if task.generated_by():
        return task, [f"{task.path}: problems and scorer of reasoning-gym, prompt {task.prompt!r}"]
    if not _incomplete(task):
        return task, []
    from zo.tasks.own import completed  # here: the tasks of conf/ need nothing of it

    return completed(task)


def _incomplete(task: TaskConfig) -> bool:
    """Returns whether something of the task must be found in the data."""
    if AUTO in (task.validation_split, task.test_split):
        return True
    if task.kind == "classification":
        return None in (task.prompt or task.messages, task.candidates, task.label)
    if task.messages is not None:
        return False
    if task.kind == "preference":
        return "{" not in str(task.chosen) or "{" not in str(task.rejected)
    return task.prompt is None or (task.kind == "completion" and task.completion is None)


def load_splits(task: TaskConfig, all_columns: bool = False) -> Splits:
    """Returns a complete task's three splits, drawn without any global random state.

    Examples keep the columns that the task names, or `all_columns` of their rows.

    Raises:
        TaskError: If data cannot be loaded or do not fit the task: a missing column, a row without text or label, a
            label without a candidate, one class, a split too small for the sizes.
    """
    if task.generated_by():
        from zo.tasks.generated import load_generated

        return load_generated(task)
    fields = task_columns(task)
    rows = read_split(task, task.train_split)
    n_train, n_validation, n_test = _sizes(task, len(rows))
    order = _order(task, rows)
    parts = {"train": (task.train_split, rows, order[:n_train])}
    for name, split, size, rest in (
        ("validation", task.validation_split, task.validation_size, order[n_train:][:n_validation]),
        ("test", task.test_split, task.test_size, order[n_train + n_validation :][:n_test]),
    ):
        parts[name] = (task.train_split, rows, rest)
        if split is not None:
            own = read_split(task, split).with_classes_of(rows)
            if task.messages is None and _answered(task, rows) and not _answered(task, own):
                raise TaskError(
                    f"task.{name}_split={split}: its rows have no labels or completions; task.{name}_split=null takes"
                    f" rows of {task.train_split!r} instead"
                )
            if task.kind == "classification":
                check_labels([rows, own], str(task.label))
            parts[name] = (split, own, _chosen(len(own), size))
    made = {name: _examples(task, *part, fields, all_columns) for name, part in parts.items()}
    splits = Splits(**made)
    labels = Counter(e.label for of in vars(splits).values() for e in of)
    classes = task.kind == task.objective == "classification" and task.choices is None
    if len(labels) == 1 and classes:
        ((label, count),) = labels.items()
        what = f"all {count} examples are {task.words[label]!r}"
        raise TaskError(f"task.label: {what}; two classes are needed")
    return splits


@dataclass(frozen=True)
class FileExamples:
    """Every row of a file as an example."""

    examples: list[Example]  # In the order of the file; their labels are 0 if the file has none
    answered: bool  # Whether the file has labels or completions
    # The task to tokenize the examples with: without completions, a task of prompts
    task: TaskConfig
    notes: Sequence[str] = ()  # Sentences about the file


def load_file(task: TaskConfig, file: Path) -> FileExamples:
    """Returns every row of a file as an example of a complete task. Raises TaskError as `load_splits`."""
    task = replace(task, turns="last")  # which is what is predicted
    here = replace(task, path=str(file.resolve()), data_files=None, where=None)
    here = replace(here, subset=None, data_dir=None, revision=None, install=None)
    rows = read_split(here, "train")
    if task.kind == "classification" and task.choices is None:
        rows = _with_classes_of_run(task, rows)
    answered = _answered(task, rows)
    if task.kind == "completion" and not answered:
        here = task = replace(here, kind="prompts", completion=None, references=None, measure=None)
    elif task.kind == "prompts":
        here = task = replace(here, references=None)
    elif not answered:
        here = replace(here, kind="prompts")
    wanted = task_columns(here)
    for column, key in wanted.items():
        if rows.column(column) is None:
            there = ", ".join(sorted(rows.names))
            raise TaskError(
                f"{file}: has no column {column!r}, which the run's task.{key} reads, only {there}; rename one of them"
            )
    found = _examples(here, file.name, rows, np.arange(len(rows)), wanted)
    if not answered and task.choices is not None:
        found = [replace(e, fields={**e.fields, str(task.label): []}) for e in found]
    return FileExamples(found, answered, task, rows.notes)


def load_rest(task: TaskConfig, count: int, seeds: Sequence[int] = ()) -> FileExamples:
    """Returns the first rows of `train_split`, in the run's order, that the run did not see in training or evaluation.

    Rows of runs with `seeds` as their `train_set_seed`, as tuning runs, and equal texts are left out, too.

    Raises:
        TaskError: If there are not so many, or as `load_splits`.
    """
    rows, fields = read_split(task, task.train_split), task_columns(task)
    used = sum(_sizes(task, len(rows)))
    orders = [_order(replace(task, train_set_seed=s), rows) for s in (task.train_set_seed, *seeds)]
    every = _examples(task, str(task.train_split), rows, np.arange(len(rows)), fields)
    texts = [str({**e.fields, str(task.label): None}) for e in every]
    seen = {texts[i] for order in orders for i in order[:used]}
    rest = [every[i] for i in orders[0][used:] if texts[i] not in seen]
    if count > len(rest):
        raise TaskError(f"--rest {count}: {len(rest)} rows are left; give at most so many")
    return FileExamples(rest[:count], _answered(task, rows), task, rows.notes)


def _with_classes_of_run(task: TaskConfig, rows: Rows) -> Rows:
    """Returns rows whose labels are the run's, by name where both have names. Raises TaskError if the names differ."""
    label, words = str(task.label), [word.strip() for word in task.words]
    numbered = task.labels in (None, [*range(len(words))])
    here = rows.classes.get(label, words)
    if numbered and not {*here} & {*words}:
        said = f"{rows.source}: its classes {', '.join(here[:SHOWN])} are taken in this order for the run's"
        return replace(rows, notes=[*rows.notes, f"{said} {', '.join(words[:SHOWN])}"])
    labels = list(task.labels or ())
    run = Rows([label], np.arange(len(labels)), lambda _, at: [labels[i] for i in at.tolist()])
    classes = {label: words} if numbered else {}
    return rows.with_classes_of(replace(run, classes=classes, source="the run"))


def _answered(task: TaskConfig, rows: Rows) -> bool:
    """Returns whether the data have the task's labels or completions."""
    from zo.tasks.conversations import conversations, parts_of

    wanted = [str(task.label)] if task.kind == "classification" else []
    if task.kind == "completion":
        wanted = [c for c in columns(str(task.completion or ""), "completion") if c not in MADE]
        wanted += [task.references] if task.references is not None else []
        wanted += parts_of(task.messages, rows.names)
    if not all(rows.column(name) for name in wanted):
        return False
    if task.messages is not None and task.kind == "completion":
        every = conversations(task, rows)
        return all(turns and turns[-1]["role"] == "assistant" for turns in every)
    return all(any(not _is_missing(value) for value in rows.values(name)) for name in wanted)


def _chosen(n: int, most: int | None) -> np.ndarray:
    """Returns which rows of a separate split are used: all, or a choice that does not depend on the training set."""
    if most is None or n <= most:
        return np.arange(n)
    return np.random.default_rng(TEST_SEED).permutation(n)[:most]


def _sizes(task: TaskConfig, n: int) -> tuple[int, int, int]:
    """Returns how many of n rows train, validate and test; 0 for parts with a separate split."""
    part = max(1, n // PART)
    taken = {"train_size": task.train_size}
    for split, key in (("validation_split", "validation_size"), ("test_split", "test_size")):
        if getattr(task, split) is None:
            taken[key] = part if getattr(task, key) is None else getattr(task, key)
    rest = n - sum(size for size in taken.values() if size is not None)
    if taken["train_size"] is None:
        taken["train_size"], rest = rest, min(rest - 1, 0)
    if rest < 0:
        if task.train_size is None:
            taken["train_size"] = 1  # at least
        raise TaskError(
            f"{' + '.join(f'task.{key}' for key in taken)}: {' + '.join(map(str, taken.values()))} ="
            f" {n - rest} examples needed, but split {task.train_split!r} of {task.path}"
            f" has {n}"
        )
    return tuple(taken.get(key) or 0 for key in ("train_size", "validation_size", "test_size"))  # type: ignore[return-value]


def _order(task: TaskConfig, rows: Rows) -> np.ndarray:
    """Returns the rows' numbers in the order in which they are assigned to training, validation and test."""
    if task.split_order == "first":
        return np.arange(len(rows))
    order = np.random.default_rng(task.train_set_seed).permutation(len(rows))
    if task.split_order != "stratified" or not rows.column(str(task.label)):
        return order
    values = rows.values(str(task.label))
    labels = [same(values[i]) for i in order]
    counts, seen, shares = Counter(labels), Counter[Any](), []
    for label in labels:  # a label's rows lie at equal distances: every part has its share of them
        shares.append((seen[label] + 0.5) / counts[label])
        seen[label] += 1
    return order[np.argsort(shares, kind="stable")]


def _examples(
    task: TaskConfig,
    split: str,
    rows: Rows,
    indices: np.ndarray,
    fields: dict[str, str],
    all_columns: bool = False,
) -> list[Example]:
    """Returns the examples of some rows."""
    chosen = rows.select(indices)
    places = chosen.indices.tolist()
    extra = {c: k for k in EXTRA if (c := getattr(task, k)) is not None}
    if task.kind == "classification":
        extra[str(task.label)] = "label"
    columns = {}
    for field, key in (fields | extra).items():
        chosen.require(field, key)
        columns[field] = chosen.values(field)
        if field in fields and rows.nothing is not None and field not in extra:
            columns[field] = [rows.nothing if v is None else v for v in columns[field]]
        if field in fields:
            _require_text(f"task.{fields[field]}", field, columns[field], places)
        needed = field in extra or key == "candidates"
        blank = [_is_missing(v, needed) for v in columns[field]]
        _require_values(f"task.{key}", split, field, blank, places)
    for key in ("prompt", "completion", "chosen", "rejected"):
        if texts := [columns[f] for f, k in fields.items() if k == key]:
            blank = [all(map(_is_missing, values)) for values in zip(*texts, strict=True)]
            named = ", ".join(f for f, k in fields.items() if k == key)
            _require_values(f"task.{key}", split, named, blank, places)
    if task.messages is not None:
        from zo.tasks.conversations import TOOLS, conversations, tools_of

        columns[task.messages] = conversations(task, chosen)
        if TOOLS in chosen.names:
            columns[TOOLS] = tools_of(chosen)
        if task.rejected is not None:
            columns[task.rejected] = conversations(task, chosen, "rejected")
    kept = {f: of for f, of in columns.items() if f in fields or f != task.label or task.choices}
    values = columns.get(str(task.label), [])
    every = {name: chosen.values(name) for name in chosen.names} if all_columns else {}
    found, classes = [], task.kind == "classification"
    for i, row in enumerate(places):
        of_split = f"row {row} of split {split!r}"
        label = _label(task, columns, values, i, of_split) if classes else 0
        own, more = ({name: of[i] for name, of in some.items()} for some in (kept, every))
        found.append(Example(own, label, row, more))
    if task.kind == "preference":
        from zo.tasks.preferences import check_pairs

        check_pairs(task, split, found)
    return found


def _is_missing(value: Any, or_blank: bool = True) -> bool:
    """Returns whether a cell has no value: null, NaN or, if asked, blank text."""
    if isinstance(value, str):
        return or_blank and not value.strip()
    return value is None or bool(value != value)


def _require_text(key: str, column: str, values: Sequence[Any], places: Sequence[int]) -> None:
    """Checks that a template's column has texts or numbers, not lists or mappings."""
    if {*map(type, values)} <= {str, int}:
        return
    other = [
        (row, type(value).__name__)
        for row, value in zip(places, values, strict=True)
        if value is not None and not is_text(value)
    ]
    if other:
        row, what = min(other)
        raise TaskError(
            f"{key}: row {row}, counted from 0, has a {what} in {column}, which is no text; give texts, or lists of"
            f" {{role, content}} as {typed('messages', column)}"
        )


def _require_values(
    key: str, split: str, column: str, missing: Sequence[bool], places: Sequence[int]
) -> None:
    """Checks that every row has a value, since None would be rendered as a word."""
    if any(missing):
        first = min(row for row, none in zip(places, missing, strict=True) if none)
        raise TaskError(
            f"{key}: {sum(missing)} of {len(places)} rows of split {split!r} have nothing in {column} (the first is row"
            f" {first}, counted from 0); fill or remove them"
        )


def _index(task: TaskConfig, value: Any) -> int | None:
    """Returns the index of a label's candidate; None if there is none."""
    if task.labels is not None:
        if value in task.labels and not isinstance(value, Written):
            return task.labels.index(value)
        for form in (shown, same, plain):  # the last, since Python's csv writer has True for true
            labels, key = [*map(form, task.labels)], form(value)
            if key in labels:
                return labels.index(key) if labels.count(key) == 1 else None
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    return int(value) if isinstance(value, int) and 0 <= value < len(task.words) else None


def _label(
    task: TaskConfig, columns: dict[str, list[Any]], values: Sequence[Any], i: int, row: str
) -> int:
    """Returns the index of the true candidate of the i-th of some rows."""
    if task.choices is not None:
        choices, right = columns[task.choices][i], right_choices(values[i])
        if not isinstance(choices, list | tuple):
            raise TaskError(f"task.choices: {row} has {choices!r}; a list of texts is needed")
        if (first := right[0] if right else None) in choices:
            return int(choices.index(first))
        raise TaskError(f"task.label: {row} has the answer {first!r}, which is no choice of it")
    index = _index(task, values[i])
    if index is not None:
        return index
    distinct = sorted(set(values), key=str)
    found = ", ".join(map(repr, distinct[:SHOWN])) + (", ..." if len(distinct) > SHOWN else "")
    what = f"{row} has the {task.label} {values[i]!r}"
    if task.labels is not None:
        known = ", ".join(map(repr, task.labels))
        raise TaskError(f"task.labels: {what}, which is none of {known}; the data have {found}")
    if isinstance(values[i], str):
        raise TaskError(
            f"task.labels: {what}, a text; list the labels ({found}) in the order of"
            " task.candidates, as task.labels=[...]"
        )
    raise TaskError(
        f"task.label: {what}, which is not the index of one of the {len(task.words)} task.candidates;"
        f" the data have {found}, and task.labels gives them an order"
    )
