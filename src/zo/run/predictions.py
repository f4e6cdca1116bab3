"""The best step's predictions, or losses of completions: a file in the run's directory; F1 and the confusion matrix."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zo.run.assembly import Session
from zo.run.store import atomic
from zo.run.totals import Best, Summary
from zo.tasks import Encoded, Example
from zo.tasks.predictions import Confusion, class_names, names_of, table

DIGITS = 6  # Of a probability that is stored
TABLE = "predictions.csv"

Answers = Mapping[str, tuple[list[int], list[float]]]
"""Split -> predicted candidates, and their probabilities where they are known; or none, and each example's loss."""


def rounded(probabilities: list[float]) -> list[float]:
    """Returns probabilities as they are stored."""
    return [round(p, DIGITS) for p in probabilities]


def write(directory: Path, answers: Answers, session: Session) -> str:
    """Writes each split's answers, `test` first, as a table, on process 0; returns its digest."""
    examples: list[Example] = []
    compared = any(predictions for predictions, _ in answers.values())
    columns = ("split", "label", "predicted", "probability") if compared else ("split", "loss")
    added: dict[str, list[Any]] = {key: [] for key in columns}
    for split, (predictions, probabilities) in answers.items():
        of = session.examples[split]
        examples += of
        added["split"] += [split] * len(of)
        if not compared:
            added["loss"] += rounded(probabilities)
            continue
        names = [names_of(session.task, example) for example in of]
        added["label"] += [n[e.label] for n, e in zip(names, of, strict=True)]
        added["predicted"] += [n[i] for n, i in zip(names, predictions, strict=True)]
        added["probability"] += rounded(probabilities) or [""] * len(of)
    text = table(session.task, examples, added).encode()
    if session.processes.leads:
        atomic.replace(directory / TABLE, text)
    return _digest(text)


def restore(directory: Path, best: Best, session: Session) -> None:
    """Makes sure that the table is that of the best evaluation of earlier attempts.

    One that is missing, or is another evaluation's, is written from the row, which has no probabilities. The row has no
    losses either: a table of another evaluation's is removed.
    """
    if best.step < 0:
        return
    path, stored, known = directory / TABLE, best.predictions(), best.row.get("best/predictions")
    if path.exists() and _digest(path.read_bytes()) == known:
        return
    if not stored["test"]:
        path.unlink(missing_ok=True)
    else:
        write(directory, {name: (of, []) for name, of in stored.items()}, session)


def figures(best: Best, session: Session) -> Summary:
    """Returns F1, balanced accuracy and the confusion matrix of the test split; nothing if classes differ by row."""
    names = class_names(session.task)
    if best.step < 0 or names is None:
        return {}
    found = Confusion.of([e.label for e in session.test], best.predictions()["test"], len(names))
    return {
        "best/test_macro_f1": found.macro_f1,
        "best/test_balanced_accuracy": found.balanced_accuracy,
        "best/test_class_f1": found.f1,
        "best/test_confusion": found.counts,
        "test/classes": names,
    }


def macro_f1(predicted: list[int], examples: list[Encoded], session: Session) -> float:
    """Returns the mean of the classes' F1."""
    names = class_names(session.task)
    assert names is not None
    return Confusion.of([e.label for e in examples], predicted, len(names)).macro_f1


def lines(summary: Summary) -> list[str]:
    """Returns a summary's `figures` in one sentence for people, if it has them."""
    if "best/test_confusion" not in summary:
        return []
    confusion = Confusion(summary["best/test_confusion"])
    return [confusion.described(summary["test/classes"])]


def _digest(table_: bytes) -> str:
    return hashlib.sha256(table_).hexdigest()[:16]
