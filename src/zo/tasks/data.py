"""Rows of a dataset -> training, validation and test examples; the same ones every time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.reading import read_split, require_column
from zo.tasks.templates import task_columns

if TYPE_CHECKING:
    import datasets

SHOWN = 8
"""Labels in a sentence."""

TEST_SEED = 0  # "at most 1,000 test examples, seed 0": the same ones whatever train_set_seed is


@dataclass(frozen=True)
class Example:
    """The templates' columns of one row, and the index of its true candidate.

    Attributes:
        fields: Column -> value.
        label: Index of the true candidate.
        row: Number in its file, from 0.
    """

    fields: dict[str, Any]
    label: int
    row: int = 0


@dataclass(frozen=True)
class Splits:
    """The examples of a run, each split in a fixed order."""

    train: list[Example]
    validation: list[Example]
    test: list[Example]


def load_splits(task: TaskConfig) -> Splits:
    """Returns the task's three splits, drawn without any global random state.

    Raises:
        TaskError: If data are out of reach or are not what the task says: a column that is not there, a row without
            text or label, a label without a candidate, one class, a split too small for the sizes.
    """
    fields = task_columns(task)
    rows = read_split(task, task.train_split)
    n_train, n_validation = task.train_size, task.validation_size
    order = _order(task, len(rows[0]))
    if task.test_split is None:
        _require(task, len(rows[0]), ("train_size", "validation_size", "test_size"))
        test_rows, test = rows, order[n_train + n_validation :][: task.test_size]
    else:
        _require(task, len(rows[0]), ("train_size", "validation_size"))
        test_rows = read_split(task, task.test_split)
        test = np.arange(len(test_rows[0]))
        if len(test) > task.test_size:
            test = np.random.default_rng(TEST_SEED).permutation(len(test))[: task.test_size]
    name, other = task.train_split, task.test_split or task.train_split
    splits = Splits(
        train=_examples(task, name, rows, order[:n_train], fields),
        validation=_examples(task, name, rows, order[n_train:][:n_validation], fields),
        test=_examples(task, other, test_rows, test, fields),
    )
    labels = Counter(e.label for of in (splits.train, splits.validation, splits.test) for e in of)
    if len(labels) == 1 and task.objective == "classification":
        ((label, count),) = labels.items()
        raise TaskError(
            f"task.label_field: all {count} examples are {task.candidates[label]!r}; two classes are needed"
        )
    return splits


def _order(task: TaskConfig, n: int) -> np.ndarray:
    if task.split_order == "shuffled":
        return np.random.default_rng(task.train_set_seed).permutation(n)
    if task.split_order == "first":
        return np.arange(n)
    raise TaskError(f"task.split_order: {task.split_order!r} is neither 'shuffled' nor 'first'")


def _require(task: TaskConfig, have: int, keys: Sequence[str]) -> None:
    sizes = [getattr(task, key) for key in keys]
    for key, size in zip(keys, sizes, strict=True):
        if size < 1:
            raise TaskError(f"task.{key}: {size} examples; at least 1 is needed")
    if sum(sizes) > have:
        raise TaskError(
            f"{' + '.join(f'task.{key}' for key in keys)}: {' + '.join(map(str, sizes))} ="
            f" {sum(sizes)} examples needed, but split {task.train_split!r} of {task.path}"
            f" has {have}"
        )


def _examples(
    task: TaskConfig,
    split: str,
    data: tuple[datasets.Dataset, np.ndarray],
    indices: np.ndarray,
    fields: dict[str, str],
) -> list[Example]:
    """Returns the examples of some rows.

    Raises:
        TaskError: If a column is not there, or a row has no text or no label that can be meant.
    """
    rows, numbers = data
    for field, key in fields.items():
        require_column(rows, field, key)
    require_column(rows, task.label_field, "label_field")
    chosen, places = rows.select(indices), [int(n) for n in numbers[indices]]
    columns = {field: chosen[field][:] for field in fields}
    for field, key in fields.items():
        _require_values(f"task.{key}", split, field, columns[field], places)
    if columns:
        blank = [
            all(not str(v).strip() for v in values)
            for values in zip(*columns.values(), strict=True)
        ]
        _require_values(
            "task.prompt", split, ", ".join(columns), [None if b else b for b in blank], places
        )
    values = chosen[task.label_field][:]
    _require_values("task.label_field", split, task.label_field, values, places)
    return [
        Example(
            {field: of[i] for field, of in columns.items()},
            _label(task, values, i, places[i]),
            places[i],
        )
        for i in range(len(places))
    ]


def _require_values(
    key: str, split: str, column: str, values: Sequence[Any], places: Sequence[int]
) -> None:
    """Makes sure that every row has a value: None would be rendered as a word.

    Raises:
        TaskError: If one has none; says how many, and the first.
    """
    missing = [
        row for row, value in zip(places, values, strict=True) if value is None or value != value
    ]
    if missing:
        raise TaskError(
            f"{key}: {len(missing)} of {len(places)} rows of split {split!r} have nothing in {column} (the first is row"
            f" {min(missing)}, counted from 0); fill them or take them out. A csv's NA and null are read as nothing"
        )


def _index(task: TaskConfig, value: Any) -> int | None:
    """Returns the index of the candidate that a label stands for; None if there is none."""
    if task.labels is not None:
        return task.labels.index(value) if value in task.labels else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return int(value) if isinstance(value, int) and 0 <= value < len(task.candidates) else None


def _label(task: TaskConfig, values: Sequence[Any], i: int, row: int) -> int:
    """Returns the index of the true candidate of the i-th of some rows.

    Raises:
        TaskError: If there is none; shows the labels that there are.
    """
    index = _index(task, values[i])
    if index is not None:
        return index
    distinct = sorted(set(values), key=str)
    found = ", ".join(map(repr, distinct[:SHOWN])) + (", ..." if len(distinct) > SHOWN else "")
    what = f"row {row} has the {task.label_field} {values[i]!r}"
    if task.labels is not None:
        known = ", ".join(map(repr, task.labels))
        raise TaskError(f"task.labels: {what}, which is none of {known}; the data have {found}")
    if isinstance(values[i], str):
        raise TaskError(
            f"task.labels: {what}, a text; list the labels ({found}) in the order of"
            " task.candidates, as task.labels=[...]"
        )
    raise TaskError(
        f"task.label_field: {what}, which is not the index of one of the {len(task.candidates)} task.candidates;"
        f" the data have {found}, and task.labels gives them an order"
    )
