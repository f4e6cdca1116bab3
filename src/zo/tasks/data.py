"""Rows of a dataset -> training, validation and test examples; the same ones every time."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.reading import read_split, require_column, values_of
from zo.tasks.templates import MADE, columns, task_columns

if TYPE_CHECKING:
    import datasets

SHOWN = 8
"""Labels in a sentence."""

PART = 10
"""Of a split without sizes, one row in so many validates, and one tests."""

EXTRA = ("choices", "references", "messages")
"""Keys that name a column with a list."""

TEST_SEED = 0  # "at most 1,000 test examples, seed 0": the same ones whatever train_set_seed is


@dataclass(frozen=True)
class Example:
    """The templates' columns of one row, and the index of its true candidate.

    Attributes:
        fields: Column -> value.
        label: Index of the true candidate.
        row: Number in its file, from 0.
        columns: All columns of the row, where a reward function gets them.
    """

    fields: dict[str, Any]
    label: int
    row: int = 0
    columns: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Splits:
    """The examples of a run, each split in a fixed order."""

    train: list[Example]
    validation: list[Example]
    test: list[Example]


def load_splits(task: TaskConfig, all_columns: bool = False) -> Splits:
    """Returns the task's three splits, drawn without any global random state.

    Args:
        task: Complete.
        all_columns: Whether examples keep all columns of their rows, besides those that the task names.

    Raises:
        TaskError: If data are out of reach or are not what the task says: a column that is not there, a row without
            text or label, a label without a candidate, one class, a split too small for the sizes.
    """
    if task.generated_by():
        from zo.tasks.generated import load_generated  # which makes examples, too

        return load_generated(task)
    fields = task_columns(task)
    rows = read_split(task, task.train_split)
    n_train, n_validation, n_test = _sizes(task, len(rows[0]))
    order = _order(task, rows[0])
    parts = {"train": (task.train_split, rows, order[:n_train])}
    for name, split, size, rest in (
        ("validation", task.validation_split, task.validation_size, order[n_train:][:n_validation]),
        ("test", task.test_split, task.test_size, order[n_train + n_validation :][:n_test]),
    ):
        parts[name] = (task.train_split, rows, rest)
        if split is not None:
            own = read_split(task, split)
            parts[name] = (split, own, _chosen(len(own[0]), size))
    splits = Splits(
        **{name: _examples(task, *part, fields, all_columns) for name, part in parts.items()}
    )
    labels = Counter(e.label for of in vars(splits).values() for e in of)
    if len(labels) == 1 and task.kind == "classification" and task.objective == "classification":
        ((label, count),) = labels.items()
        raise TaskError(
            f"task.label: all {count} examples are {task.words[label]!r}; two classes are needed"
        )
    return splits


@dataclass(frozen=True)
class FileExamples:
    """Every row of a file as an example.

    Attributes:
        examples: In the order of the file; their labels are 0 if the file has none.
        answered: Whether the file has labels or completions.
        task: What the examples are tokenized by: without completions, a task of prompts.
    """

    examples: list[Example]
    answered: bool
    task: TaskConfig


def load_file(task: TaskConfig, file: Path) -> FileExamples:
    """Returns every row of a file as an example of a complete task.

    Raises:
        TaskError: As `load_splits`.
    """
    here = replace(task, path=str(file.resolve()), data_files=None, where=None)
    here = replace(here, subset=None, data_dir=None, revision=None, install=None)
    data = read_split(here, "train")
    rows, numbers = data
    if not len(rows):
        raise TaskError(f"task.path: {file} has no rows")
    answered = _answered(task, rows)
    if task.kind == "completion" and not answered:
        here = task = replace(here, kind="prompts", completion=None, references=None, measure=None)
    elif task.kind == "prompts":
        here = task = replace(here, references=None)
    elif not answered:
        here = replace(here, kind="prompts")
    found = _examples(here, file.name, data, np.arange(len(numbers)), task_columns(here))
    if not answered and task.choices is not None:
        found = [replace(e, fields={**e.fields, str(task.label): []}) for e in found]
    return FileExamples(found, answered, task)


def _answered(task: TaskConfig, rows: datasets.Dataset) -> bool:
    """Returns whether data have a task's labels or completions."""
    wanted = [str(task.label)] if task.kind == "classification" else []
    if task.kind == "completion":
        wanted = [c for c in columns(str(task.completion or ""), "completion") if c not in MADE]
        wanted += [task.references] if task.references is not None else []
    firsts = [name.partition(".")[0] for name in wanted]
    if not all(name in rows.column_names for name in firsts):
        return False
    if task.messages is not None and task.messages in rows.column_names:
        return all(turns and turns[-1].get("role") == "assistant" for turns in rows[task.messages])
    return all(any(value is not None for value in rows[name][:]) for name in firsts)


def _chosen(n: int, most: int | None) -> np.ndarray:
    """Returns which rows of a split of their own are used: all, or the same ones whatever the training set."""
    if most is None or n <= most:
        return np.arange(n)
    return np.random.default_rng(TEST_SEED).permutation(n)[:most]


def _sizes(task: TaskConfig, n: int) -> tuple[int, int, int]:
    """Returns how many of n rows train, validate and test; a split of its own takes none of them."""
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


def _order(task: TaskConfig, rows: datasets.Dataset) -> np.ndarray:
    """Returns the rows' numbers in the order that they train, validate and test in."""
    if task.split_order == "first":
        return np.arange(len(rows))
    order = np.random.default_rng(task.train_set_seed).permutation(len(rows))
    if task.split_order != "stratified" or task.label not in rows.column_names:
        return order
    values = rows[task.label][:]
    labels = [str(values[i]) for i in order]
    counts, seen, shares = Counter(labels), Counter[str](), []
    for label in (
        labels
    ):  # each label's rows lie at equal distances, so that every part has its share of them
        shares.append((seen[label] + 0.5) / counts[label])
        seen[label] += 1
    return order[np.argsort(shares, kind="stable")]


def _examples(
    task: TaskConfig,
    split: str,
    data: tuple[datasets.Dataset, np.ndarray],
    indices: np.ndarray,
    fields: dict[str, str],
    all_columns: bool = False,
) -> list[Example]:
    """Returns the examples of some rows."""
    rows, numbers = data
    extra = {c: k for k in EXTRA if (c := getattr(task, k)) is not None}
    if task.kind == "classification":
        extra[str(task.label)] = "label"
    for field, key in (fields | extra).items():
        require_column(rows, field, key)
    chosen, places = rows.select(indices), [int(n) for n in numbers[indices]]
    columns = {field: values_of(chosen, field) for field in fields | extra}
    for field, key in (fields | extra).items():
        _require_values(f"task.{key}", split, field, columns[field], places)
    for key in ("prompt", "completion"):
        texts = {f: columns[f] for f, k in fields.items() if k == key}
        _require_text(f"task.{key}", split, texts, places)
    kept = {f: of for f, of in columns.items() if f in fields or f != task.label or task.choices}
    values = columns.get(str(task.label), [])
    every = {name: chosen[name][:] for name in chosen.column_names} if all_columns else {}
    return [
        Example(
            {field: of[i] for field, of in kept.items()},
            0 if task.kind != "classification" else _label(task, columns, values, i, places[i]),
            places[i],
            {name: of[i] for name, of in every.items()},
        )
        for i in range(len(places))
    ]


def _require_text(
    key: str, split: str, columns: dict[str, list[Any]], places: Sequence[int]
) -> None:
    """Makes sure that no row is blank in all of the columns."""
    if columns:
        blank = [
            all(not str(v).strip() for v in values)
            for values in zip(*columns.values(), strict=True)
        ]
        _require_values(key, split, ", ".join(columns), [None if b else b for b in blank], places)


def _require_values(
    key: str, split: str, column: str, values: Sequence[Any], places: Sequence[int]
) -> None:
    """Makes sure that every row has a value: None would be rendered as a word."""
    missing = [
        row for row, value in zip(places, values, strict=True) if value is None or value != value
    ]
    if missing:
        raise TaskError(
            f"{key}: {len(missing)} of {len(places)} rows of split {split!r} have nothing in {column} (the first is row"
            f" {min(missing)}, counted from 0); fill them or take them out"
        )


def _index(task: TaskConfig, value: Any) -> int | None:
    """Returns the index of the candidate that a label stands for; None if there is none."""
    if task.labels is not None:
        return task.labels.index(value) if value in task.labels else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return int(value) if isinstance(value, int) and 0 <= value < len(task.words) else None


def _label(
    task: TaskConfig, columns: dict[str, list[Any]], values: Sequence[Any], i: int, row: int
) -> int:
    """Returns the index of the true candidate of the i-th of some rows."""
    if task.choices is not None:
        first, choices = values[i][0] if values[i] else None, columns[task.choices][i]
        if first in choices:
            return int(choices.index(first))
        raise TaskError(f"task.label: row {row} has the answer {first!r}, which is no choice of it")
    index = _index(task, values[i])
    if index is not None:
        return index
    distinct = sorted(set(values), key=str)
    found = ", ".join(map(repr, distinct[:SHOWN])) + (", ..." if len(distinct) > SHOWN else "")
    what = f"row {row} has the {task.label} {values[i]!r}"
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
