"""Logs of rewards: sums over the texts of a step, and failures to show."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

SHOWN = 2_000  # Characters of a logged text
MOST_EVENTS = 20  # Most logged failures of a step


@dataclass(frozen=True)
class Failure:
    """A text that a function could not rate."""

    index: int  # Of the text in its request
    function: str  # Name
    kind: str  # `hang`, `exit`, `raise`, `memory`, `length` or `value`
    said: str  # The reason
    traceback: str = ""  # Of its exception; may be empty


@dataclass
class Ratings:
    """Ratings of some texts."""

    totals: list[float | None]  # Reward of each text; None if no function rates it
    # Function's name -> its unweighted number for each text; None if it gave none
    values: dict[str, list[float | None]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)  # Texts that a function could not rate
    extra: dict[str, list[Any]] = field(default_factory=dict)  # Column -> logged value of each text
    # Name -> numbers that functions logged
    metrics: dict[str, list[float]] = field(default_factory=dict)
    printed: list[str] = field(default_factory=list)  # What functions printed
    left: int = 0  # Processes that functions left behind, which were killed
    dropped: int = 0  # Logged metrics that are no finite numbers, and are left out


def mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that are not None, or None. It does not depend on their order."""
    rated = [v for v in values if v is not None]
    try:
        return math.fsum(rated) / len(rated) if rated else None
    except OverflowError:  # the sum alone is too large
        return math.fsum(v / len(rated) for v in rated)


@dataclass
class Tally:
    """Sums over the texts of a step, in this process or in all."""

    texts: int = 0  # Their number
    tokens: int = 0  # Generated tokens
    truncated: int = 0  # Texts that `task.max_new_tokens` cut
    unrated: int = 0  # Texts that no function rates
    values: dict[str, list[float]] = field(default_factory=dict)  # Function's name -> its numbers
    # Name -> numbers that functions logged
    metrics: dict[str, list[float]] = field(default_factory=dict)
    # Kind of failure -> its number; `printed`, `left` and `dropped` count calls, processes and metrics
    counts: Counter[str] = field(default_factory=Counter)
    events: list[dict[str, Any]] = field(default_factory=list)  # Failures as rows of a log
    printed: str = ""  # The first thing that a function printed

    def see(
        self,
        ratings: Ratings,
        rows: Sequence[int],
        texts: Sequence[str],
        lengths: Sequence[int],
        truncated: int,
    ) -> None:
        """Adds rated texts, of these rows of their file: their lengths in tokens, and how many were truncated."""
        failures, first = ratings.failures, "".join(ratings.printed[:1])
        counts = Counter(failure.kind for failure in failures)
        counts.update(printed=len(ratings.printed), left=ratings.left, dropped=ratings.dropped)
        events = [
            {"row": rows[f.index], "text": texts[f.index][:SHOWN]}
            | {"function": f.function, "error": f.kind, "said": f.said}
            for f in failures[:MOST_EVENTS]
        ]
        values = {name: [v for v in of if v is not None] for name, of in ratings.values.items()}
        sizes = len(texts), sum(lengths), truncated, ratings.totals.count(None)
        self.add(Tally(*sizes, values, ratings.metrics, counts, events, first))

    def add(self, other: Tally) -> None:
        """Adds another tally, as that of another process."""
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
        """Returns the columns of a step's row; losses are those of its points, each minus the mean reward."""
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


HARMLESS = ("printed", "left", "dropped")  # Counts that are not failures
