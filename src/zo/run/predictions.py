"""The best step's predictions: a file in the run's directory, F1 and the confusion matrix of its summary."""

from pathlib import Path
from typing import Any

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


def write(directory: Path, best: Best, session: Session) -> None:
    """Writes the best step's predictions as a table; nothing before an evaluation."""
    if best.step < 0 or not (stored := best.predictions())["test"]:
        return
    examples: list[Example] = []
    added: dict[str, list[Any]] = {
        key: [] for key in ("split", "label", "predicted", "probability")
    }
    for split, short in (("test", "test"), ("validation", "val")):
        of = session.examples[split]
        names = [names_of(session.task, example) for example in of]
        examples += of
        added["split"] += [split] * len(of)
        added["label"] += [n[e.label] for n, e in zip(names, of, strict=True)]
        added["predicted"] += [n[i] for n, i in zip(names, stored[split], strict=True)]
        added["probability"] += best.probabilities(short) or [""] * len(of)
    atomic.replace(directory / TABLE, table(session.task, examples, added))


def figures(best: Best, session: Session) -> Summary:
    """Returns F1, balanced accuracy and the confusion matrix of the test split; nothing if classes differ by row."""
    names = class_names(session.task)
    if best.step < 0 or names is None:
        return {}
    predicted = best.predictions()["test"]
    found = Confusion.of([e.label for e in session.test], predicted, len(names))
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
