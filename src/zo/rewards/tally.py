"""What rewards log: sums over the texts of a step, and the texts that a person should see."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

SHOWN = 2_000
"""Characters of a text that is written down."""

MOST_EVENTS = 20
"""Failures of a step that are written down."""


@dataclass(frozen=True)
class Failure:
    """A text that a function could not rate.

    Attributes:
        index: Of the text among those that were rated together.
        function: Name.
        kind: `hang`, `exit`, `raise`, `memory`, `length` or `value`.
        said: A sentence.
        traceback: Of what it raised; may be empty.
    """

    index: int
    function: str
    kind: str
    said: str
    traceback: str = ""


@dataclass
class Ratings:
    """What some texts are worth.

    Attributes:
        totals: A number for each text; None of one that no function rates.
        values: Function's name -> its number for each text, unweighted; None where it gave none.
        failures: Texts that a function could not rate.
        extra: Column -> what functions logged of each text.
        metrics: Name -> numbers that functions logged.
        printed: What functions printed.
        left: Processes that functions left behind, which were ended.
    """

    totals: list[float | None]
    values: dict[str, list[float | None]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    extra: dict[str, list[Any]] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    printed: list[str] = field(default_factory=list)
    left: int = 0

    def mean(self) -> float:
        """Returns the mean over the texts that are rated; 0 if none is."""
        return mean(self.totals) or 0.0


def mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean of what is not None; None of nothing. It does not depend on the order."""
    rated = [v for v in values if v is not None]
    return math.fsum(rated) / len(rated) if rated else None


@dataclass
class Tally:
    """Sums over the texts of a step, of this process or of all.

    Attributes:
        texts: Their number.
        tokens: That were written.
        truncated: Texts that `task.max_new_tokens` cut.
        unrated: Texts that no function rates.
        values: Function's name -> its numbers.
        metrics: Name -> numbers that functions logged.
        counts: Kind of failure -> its number; `printed` and `left` count calls and processes.
        events: Failures as rows of a log.
        printed: The first thing that a function printed.
    """

    texts: int = 0
    tokens: int = 0
    truncated: int = 0
    unrated: int = 0
    values: dict[str, list[float]] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    events: list[dict[str, Any]] = field(default_factory=list)
    printed: str = ""

    def see(
        self,
        ratings: Ratings,
        rows: Sequence[int],
        texts: Sequence[str],
        lengths: Sequence[int],
        truncated: int,
    ) -> None:
        """Adds texts.

        Args:
            ratings: Of them.
            rows: Number of each one's row in its file.
            texts: As written.
            lengths: In tokens.
            truncated: How many were cut.
        """
        self.texts += len(texts)
        self.tokens += sum(lengths)
        self.truncated += truncated
        self.unrated += ratings.totals.count(None)
        for name, values in ratings.values.items():
            self.values.setdefault(name, []).extend(v for v in values if v is not None)
        for name, numbers in ratings.metrics.items():
            self.metrics.setdefault(name, []).extend(numbers)
        for failure in ratings.failures:
            self.counts[failure.kind] += 1
            if len(self.events) < MOST_EVENTS:
                told = {"row": rows[failure.index], "text": texts[failure.index][:SHOWN]}
                what = {"function": failure.function, "error": failure.kind, "said": failure.said}
                self.events.append({**told, **what})
        self.counts["printed"] += len(ratings.printed)
        self.counts["left"] += ratings.left
        self.printed = self.printed or "".join(ratings.printed[:1])

    def add(self, other: Tally) -> None:
        """Adds what another process saw."""
        self.texts += other.texts
        self.tokens += other.tokens
        self.truncated += other.truncated
        self.unrated += other.unrated
        for mine, theirs in ((self.values, other.values), (self.metrics, other.metrics)):
            for name, numbers in theirs.items():
                mine.setdefault(name, []).extend(numbers)
        self.counts += other.counts
        self.events = [*self.events, *other.events][:MOST_EVENTS]
        self.printed = self.printed or other.printed

    def row(self, losses: Sequence[float]) -> dict[str, float]:
        """Returns what a step's row has of rewards.

        Args:
            losses: At the step's points: minus the mean reward at each.
        """
        rewards = [-loss for loss in losses]
        found: dict[str, float] = {
            "reward/mean": math.fsum(rewards) / len(rewards),
            "reward/best": max(rewards),
            "reward/spread": statistics.pstdev(rewards),
            "reward/errors": sum(n for kind, n in self.counts.items() if kind not in HARMLESS),
            "reward/unrated": self.unrated,
            "reward/length": self.tokens / max(self.texts, 1),
            "reward/truncated": self.truncated / max(self.texts, 1),
        }
        for kind, n in sorted(self.counts.items()):
            if n:
                found[f"reward/{kind}" if kind in HARMLESS else f"reward/errors/{kind}"] = n
        for prefix, numbers in (("rewards", self.values), ("metric", self.metrics)):
            means = {name: mean(of) for name, of in sorted(numbers.items())}
            found |= {f"{prefix}/{name}": m for name, m in means.items() if m is not None}
        return found


HARMLESS = ("printed", "left")
"""What is counted, but is no failure."""
