"""What a run adds up over its rows: the best evaluation, passes and times, what ends it, and its outcome in words."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from zo.run.store.rows import Row
from zo.tasks import Encoded
from zo.tasks.measures import CHOOSING, NAMED, Measure, chosen_by, in_row, in_summary

Summary = dict[str, Any]
TIE = "train/tie"
"""1 if all losses of a step without a gradient are equal: its slope is 0, and nothing moves."""

TIMES = ("step", "forward", "perturb")


@dataclass
class Best:
    """The first evaluation with the best value on the validation split so far."""

    row: Row = field(default_factory=dict)  # Of its step; empty before the first evaluation
    measure: Measure = NAMED["accuracy"]  # Of the values
    evaluations_since: int = 0  # Evaluations after it

    def see(self, row: Row) -> None:
        """Takes note of a row's evaluation, if it has one; only a new best is tested."""
        if (measure := in_row(row)) is None:
            return
        if "best/weights" in row:
            self.row, self.measure, self.evaluations_since = row, measure, 0
        else:
            self.evaluations_since += 1

    @property
    def step(self) -> int:
        """Where it was; -1 before the first evaluation."""
        return int(self.row.get("step", -1))

    def value(self, split: str) -> float:
        """Returns the value on `val` or `test`."""
        return float(self.row[f"eval/{split}_{self.measure.name}"])

    @property
    def shown(self) -> str:
        """The value on the validation split for people; empty before the first evaluation."""
        return self.measure.shown(self.value("val")) if self.row else ""

    def predictions(self) -> dict[str, list[int]]:
        """Returns the predicted candidates of the test and the validation split."""
        splits = {"test": "test", "validation": "val"}
        texts = {name: self.row[f"best/{short}_predictions"] for name, short in splits.items()}
        return {name: [ord(c) - ord("0") for c in text] for name, text in texts.items()}

    def summary(
        self, validation: list[Encoded], test: list[Encoded], select_by: str | None
    ) -> Summary:
        """Returns what is reported of these examples; nothing if no evaluation was reached."""
        if not self.row:
            return {}
        other = [select_by] if select_by in CHOOSING else []
        predictions = self.row["best/test_predictions"]
        return {
            "best/step": self.step,
            f"best/val_{self.measure.name}": self.value("val"),
            f"best/test_{self.measure.name}": self.value("test"),
            **{f"best/val_{name}": self.row[f"eval/val_{name}"] for name in other},
            "best/val_n": len(validation),
            "best/test_n": len(test),
            "best/test_predictions": predictions,
            "best/weights": self.row["best/weights"],
            "test/labels": characters([e.label for e in test if predictions]),
        }


@dataclass
class Totals:
    """What a run adds up over its steps, and goes on with after an interruption."""

    made: int = 0  # Steps
    # Of them, those whose losses were all equal; None where the objective has a gradient
    ties: int | None = None
    tied: int = 0  # Of them, the last ones without a step between
    forwards: int = 0  # Forward passes
    best: Best = field(default_factory=Best)  # See `Best`
    seconds: float = 0.0  # Of all steps and evaluations
    peak_gib: float = 0.0  # Largest memory at an evaluation
    # Seconds of every step, of its forward passes, and of its passes over the weights
    times: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in TIMES})

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Totals":
        """Returns the totals of the rows of steps 1, 2, …."""
        totals = cls()
        for row in rows:
            totals.see(row)
        return totals

    def see(self, row: Row) -> None:
        """Adds a row of metrics.jsonl."""
        self.best.see(row)
        self.made = row["step"]
        if TIE in row:
            self.ties = (self.ties or 0) + row[TIE]
        self.tied = self.tied + 1 if row.get(TIE) else 0
        self.forwards = row.get("train/forwards", 0)
        self.seconds += row.get("time/step_s", 0.0) + row.get("time/eval_s", 0.0)
        self.peak_gib = max(self.peak_gib, row.get("mem/peak_gib", 0.0))
        for kind, times in self.times.items():
            if f"time/{kind}_s" in row:
                times.append(row[f"time/{kind}_s"])

    def ending(self, patience: int | None) -> Summary | None:
        """Returns the ending of a run whose patience is over."""
        if patience is None or self.best.evaluations_since < patience:
            return None
        return {"run/status": "finished", "run/stop_reason": "patience"}

    def summary(self) -> Summary:
        """Returns steps, forward passes and median times, ms."""
        medians = {
            f"time/{kind}_ms_median": 1e3 * statistics.median(times)
            for kind, times in self.times.items()
            if times
        }
        return {
            "run/steps": self.made,
            "run/forwards": self.forwards,
            "time/total_s": self.seconds,
            **({} if self.ties is None else {"run/ties": self.ties}),
            **medians,
        }


def outcome(summary: Summary, patience: int | None) -> str:
    """Returns how a run ended, in one or two sentences for people."""
    if summary["run/status"] == "collapsed":
        at = f" at step {summary['run/collapse_step']}"
        return f"collapsed{at}: {summary['run/collapse_what'].removesuffix(at)}"
    measure = in_summary(summary)
    values = (summary[f"best/{split}_{measure.name}"] for split in ("test", "val"))
    test, validation = map(measure.shown, values)
    by = chosen_by(summary)
    best = validation if by is measure else by.shown(summary[f"best/val_{by.name}"])
    found = (
        f"test {test} of {summary['best/test_n']} at step "
        f"{summary['best/step']}, where validation is best ({best})"
    )
    if summary.get("run/ties"):
        found += f"; {summary['run/ties']} of {summary['run/steps']} steps had equal losses and moved nothing"
    if summary["run/stop_reason"] != "patience":
        return found
    return (
        f"stopped early at step {summary['run/steps']}: patience={patience}, no better validation "
        f"{by.name} since step {summary['best/step']}. {found[0].upper()}{found[1:]}"
    )


def characters(indices: list[int]) -> str:
    """Returns a character for each candidate's index: its digit, and beyond 9 what follows in Unicode."""
    return "".join(chr(ord("0") + index) for index in indices)
