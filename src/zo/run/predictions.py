"""The best step's predictions: a file in the run's directory, F1 and the confusion matrix of its summary."""

import csv
import hashlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zo.lm.scoring.candidates import Evaluation
from zo.run.assembly import Session
from zo.run.store import atomic
from zo.run.totals import Best, Summary
from zo.tasks import Example
from zo.tasks.predictions import Confusion, class_names, names_of, table

DIGITS = 6
"""Of a probability that is stored."""

TABLE = "predictions.csv"


def rounded(probabilities: list[float]) -> list[float]:
    """Returns probabilities as they are stored."""
    return [round(p, DIGITS) for p in probabilities]


def write(directory: Path, found: Mapping[str, Evaluation], session: Session) -> str:
    """Writes an evaluation's predictions as a table, on process 0.

    Args:
        directory: The run's.
        found: The evaluation of each split, `test` first.
        session: Has the splits' examples.

    Returns:
        The file's digest, by which the evaluation's row knows it.
    """
    examples: list[Example] = []
    added: dict[str, list[Any]] = {
        key: [] for key in ("split", "label", "predicted", "probability")
    }
    for split, of in found.items():
        names = [names_of(session.task, example) for example in session.examples[split]]
        examples += session.examples[split]
        added["split"] += [split] * len(names)
        labels = [example.label for example in session.examples[split]]
        added["label"] += [n[i] for n, i in zip(names, labels, strict=True)]
        added["predicted"] += [n[i] for n, i in zip(names, of.predictions, strict=True)]
        added["probability"] += rounded(of.probabilities) or [""] * len(names)
    text = table(session.task, examples, added)
    if session.processes.leads:
        atomic.replace(directory / TABLE, text)
    return _digest(text)


def restore(directory: Path, best: Best, session: Session, say: Callable[[str], None]) -> None:
    """Gives the best evaluation of earlier attempts its predictions on the test split, or says that they are gone."""
    if "best/predictions" not in best.row:
        return
    path = directory / TABLE
    text = path.read_bytes().decode() if path.exists() else ""
    if best.row["best/predictions"] != _digest(text):
        say(f"{path} has not the predictions of step {best.step}, the best so far")
        return
    rows = [row for row in csv.DictReader(io.StringIO(text, newline="")) if row["split"] == "test"]
    for row, example in zip(rows, session.examples["test"], strict=True):
        names = names_of(session.task, example)
        right = row["predicted"] == names[example.label]  # names may repeat
        best.predictions.append(example.label if right else names.index(row["predicted"]))


def figures(best: Best, session: Session) -> Summary:
    """Returns F1, balanced accuracy and the confusion matrix of the test split; nothing if classes differ by row."""
    names = class_names(session.task)
    if not best.predictions or names is None:
        return {}
    found = Confusion.of([e.label for e in session.test], best.predictions, len(names))
    return {
        "best/test_macro_f1": found.macro_f1,
        "best/test_balanced_accuracy": found.balanced_accuracy,
        "best/test_class_f1": found.f1,
        "best/test_confusion": found.counts,
        "test/classes": names,
    }


def lines(summary: Summary) -> list[str]:
    """Returns a summary's `figures` in one sentence for people, if it has them."""
    if "best/test_confusion" not in summary:
        return []
    confusion = Confusion(summary["best/test_confusion"])
    return [confusion.described(summary["test/classes"])]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
