"""Predictions as tables: names of classes, a row per example, F1 and the confusion matrix."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from zo.tasks.config import TaskConfig
from zo.tasks.examples import Example
from zo.tasks.templates import columns, fill, task_columns

MOST_CLASSES = 5  # Classes that a line names


@dataclass(frozen=True)
class Confusion:
    """Confusion matrix."""

    counts: list[list[int]]  # `counts[i][j]` examples of class i were predicted as class j

    @classmethod
    def of(cls, labels: Iterable[int], predictions: Iterable[int], classes: int) -> Confusion:
        """Returns the confusion matrix of labels and predictions."""
        counts = [[0] * classes for _ in range(classes)]
        for label, prediction in zip(labels, predictions, strict=True):
            counts[label][prediction] += 1
        return cls(counts)

    @property
    def f1(self) -> list[float | None]:
        """F1 of each class; None for one with neither examples nor predictions."""
        found: list[float | None] = []
        for i, row in enumerate(self.counts):
            both = sum(row) + sum(of[i] for of in self.counts)
            found.append(2 * row[i] / both if both else None)
        return found

    @property
    def macro_f1(self) -> float:
        """Mean of the classes' F1."""
        return _mean(self.f1)

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall of the classes that have examples."""
        rows = enumerate(self.counts)
        return _mean([row[i] / sum(row) if any(row) else None for i, row in rows])

    def described(self, names: Sequence[str]) -> str:
        """Returns F1 and the matrix in one line; for many classes only the means."""
        means = f"macro F1 {self.macro_f1:.1%}, balanced accuracy {self.balanced_accuracy:.1%}"
        if len(names) > MOST_CLASSES:
            return means
        f1 = ", ".join(
            f"{name} {'-' if of is None else format(of, '.1%')}"
            for name, of in zip(names, self.f1, strict=True)
        )
        rows = "; ".join(
            f"{name}: {' '.join(map(str, row))}"
            for name, row in zip(names, self.counts, strict=True)
        )
        return f"{means} (F1: {f1}); confusion, a row for each true class: {rows}"


def _mean(values: Iterable[float | None]) -> float:
    there = [value for value in values if value is not None]
    return sum(there) / len(there)


def class_names(task: TaskConfig) -> list[str] | None:
    """Returns the names of the classes; None if there are none, or if rows have their own."""
    if task.kind != "classification" or task.choices is not None:
        return None
    if any(columns(word, "candidates") for word in task.words):
        return None
    return _names(task, {})


def names_of(task: TaskConfig, example: Example) -> list[str]:
    """Returns the names of a row's candidates: the data's labels if these are words."""
    if task.choices is not None:
        return [str(choice) for choice in example.fields[task.choices]]
    if task.kind == "preference":
        from zo.tasks.preferences import NAMES

        return NAMES
    return _names(task, example.fields)


def _names(task: TaskConfig, fields: dict[str, Any]) -> list[str]:
    if task.labels and all(isinstance(label, str) for label in task.labels):
        return list(task.labels)
    return [fill(word, fields, "candidates").strip() for word in task.words]


def _cell(value: Any) -> Any:
    """Returns a value as the text of a cell; lists and mappings as JSON."""
    nested = isinstance(value, list | dict)
    return json.dumps(value, ensure_ascii=False, default=str) if nested else value


def table(task: TaskConfig, examples: Sequence[Example], added: Mapping[str, Sequence[Any]]) -> str:
    """Returns a row of CSV for each example: its number in its file, the templates' columns, and added columns.

    A column of the data with the name of an added column is written as `data.<name>`.
    """
    shown = [*task_columns(task)]
    turns = [task.messages, task.rejected] if task.messages is not None else []
    shown += [c for c in (task.choices, *turns) if c is not None and c not in shown]
    taken = {"row", *added}
    file = io.StringIO()
    # Lines end in \r\n for the writer, which then quotes a lone \r: readers take it for the end of a row.
    ends = SimpleNamespace(write=lambda line: file.write(line.removesuffix("\r\n") + "\n"))
    writer = csv.writer(ends, lineterminator="\r\n")
    writer.writerow(["row", *(f"data.{c}" if c in taken else c for c in shown), *added])
    for example, *more in zip(examples, *added.values(), strict=True):
        values = (example.fields.get(c) for c in shown)
        writer.writerow([example.row, *map(_cell, values), *more])
    return file.getvalue()
