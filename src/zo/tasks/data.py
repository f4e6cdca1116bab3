"""Rows of a dataset -> training, validation and test examples; the same ones every time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zo.tasks import package_files
from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.templates import task_columns

if TYPE_CHECKING:
    import datasets

TEST_SEED = 0  # "at most 1,000 test examples, seed 0": the same ones whatever train_set_seed is


@dataclass(frozen=True)
class Example:
    """The templates' columns of one row, and the index of its true candidate."""

    fields: dict[str, Any]
    label: int


@dataclass(frozen=True)
class Splits:
    """The examples of a run, each split in a fixed order."""

    train: list[Example]
    validation: list[Example]
    test: list[Example]


def load_splits(task: TaskConfig) -> Splits:
    """Read the task's data and draw its three splits, without any global random state.

    Raises:
        TaskError: data out of reach, a column that is not there, a label without a candidate,
            a split too small for the sizes.
    """
    fields = task_columns(task)
    rows = _read(task, task.train_split)
    n_train, n_validation = task.train_size, task.validation_size
    order = _order(task, len(rows))
    if task.test_split is None:
        _require(task, len(rows), ("train_size", "validation_size", "test_size"))
        test_rows, test = rows, order[n_train + n_validation :][: task.test_size]
    else:
        _require(task, len(rows), ("train_size", "validation_size"))
        test_rows = _read(task, task.test_split)
        test = np.arange(len(test_rows))
        if len(test) > task.test_size:
            test = np.random.default_rng(TEST_SEED).permutation(len(test))[: task.test_size]
    return Splits(
        train=_examples(task, rows, order[:n_train], fields),
        validation=_examples(task, rows, order[n_train:][:n_validation], fields),
        test=_examples(task, test_rows, test, fields),
    )


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


def _require_column(rows: datasets.Dataset, column: str, key: str) -> None:
    if column not in rows.column_names:
        columns = ", ".join(sorted(rows.column_names))
        raise TaskError(f"task.{key}: the data have no column {column!r}, only {columns}")


def _examples(
    task: TaskConfig, rows: datasets.Dataset, indices: np.ndarray, fields: dict[str, str]
) -> list[Example]:
    for field, key in fields.items():
        _require_column(rows, field, key)
    _require_column(rows, task.label_field, "label_field")
    chosen = rows.select(indices)
    labels = [
        _label(task, row, value)
        for row, value in zip(indices, chosen[task.label_field][:], strict=True)
    ]
    columns = {field: chosen[field][:] for field in fields}
    return [
        Example({field: values[i] for field, values in columns.items()}, label)
        for i, label in enumerate(labels)
    ]


def _label(task: TaskConfig, row: int, value: Any) -> int:
    """The index of the true candidate."""
    if task.labels is not None:
        if value in task.labels:
            return task.labels.index(value)
        raise TaskError(
            f"task.labels: row {row} has the {task.label_field} {value!r}, which is none of"
            f" {', '.join(map(repr, task.labels))}"
        )
    if isinstance(value, int) and 0 <= value < len(task.candidates):
        return int(value)
    raise TaskError(
        f"task.label_field: row {row} has the {task.label_field} {value!r}, which is not"
        f" the index of one of the {len(task.candidates)} task.candidates"
    )


def _read(task: TaskConfig, split: str) -> datasets.Dataset:
    """One split of the dataset, only the rows that `where` keeps."""
    import datasets  # takes a second, and the configuration alone needs none of it

    try:
        files = {
            name: package_files.resolve(file) for name, file in (task.data_files or {}).items()
        }
        with _quiet():
            rows = datasets.load_dataset(
                task.path,
                task.subset,
                data_dir=task.data_dir,
                revision=task.revision,
                data_files=files or None,
                split=split,
            )
    except Exception as error:  # the library raises a dozen kinds for "could not be loaded"
        raise TaskError(_unreachable(task, split, error)) from error
    keep = np.ones(len(rows), dtype=bool)
    for column, value in (task.where or {}).items():
        _require_column(rows, column, "where")
        keep &= np.array([entry == value for entry in rows[column][:]], dtype=bool)
    return rows if keep.all() else rows.select(np.flatnonzero(keep))


def _unreachable(task: TaskConfig, split: str, error: Exception) -> str:
    key = "task.data_files" if task.data_files else "task.path"
    part = task.subset or task.data_dir
    what = f"{task.path} ({part})" if part else task.path
    reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else repr(error)
    message = f"{key}: split {split!r} of {what} cannot be loaded ({reason})"
    if not isinstance(error, OSError):  # there, but not as the configuration says
        return message
    if task.install:
        return f"{message}; `{task.install}` brings it"
    if task.data_files or Path(task.path).is_dir():
        return f"{message}; give the path of a copy that has it"
    command = f"hf download --repo-type dataset {task.path}"
    if task.revision:
        command += f" --revision {task.revision}"
    return (
        f"{message}; where the hub can be reached, `{command} --local-dir"
        f" {task.path.split('/')[-1]}` brings a copy for task.path=<local copy>"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no chatter from the library, as it was before on exit."""
    import datasets

    verbosity = datasets.logging.get_verbosity()
    bars = not datasets.are_progress_bars_disabled()
    datasets.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if bars:
            datasets.enable_progress_bars()
