"""How a stage of `launch.measured` went."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from launch.measured.stages import Stage
from launch.sweep import ENDED, Run, Standing

FAILED = "failed"


@dataclass
class Outcome:
    """How a stage went.

    Attributes:
        stage: The stage.
        runs: Its runs; None if it was not looked at.
        found: Where each stands at the end.
        seconds: That its pool took.
        note: Why it was not made, if so.
    """

    stage: Stage
    runs: list[Run] | None = None
    found: Mapping[str, Standing] = field(default_factory=dict)
    seconds: float = 0.0
    note: str = ""

    @property
    def counts(self) -> Counter[str]:
        """Number of runs in each state."""
        return Counter(standing.state for standing in self.found.values())

    @property
    def left(self) -> int | None:
        """Runs that have neither ended nor failed; None if it was not looked at."""
        if self.runs is None:
            return None
        counts = self.counts
        return len(self.runs) - sum(counts[state] for state in (*ENDED, FAILED))
