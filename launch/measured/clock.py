"""How a time is shared out between runs, their saving, and the analysis behind them; and requests to stop."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ANALYSIS_S = 120.0
SAVING_S = 20.0
LEAST_S = 60.0
SHARES = {"analysis": 0.15, "saving": 0.05, "least": 0.1}
"""Of a short time, where the seconds above would be most of it."""


class Clock:
    """The time that there is, from now on.

    Args:
        minutes: All of it.
    """

    def __init__(self, minutes: float):
        total = 60 * minutes
        self.begun = time.monotonic()
        self.end = self.begun + total
        self.least = min(LEAST_S, SHARES["least"] * total)
        analysis = min(ANALYSIS_S, SHARES["analysis"] * total)
        self.saving = min(SAVING_S, SHARES["saving"] * total)
        self.runs_end = self.end - analysis - self.saving

    @property
    def left(self) -> float:
        """Seconds for runs."""
        return self.runs_end - time.monotonic()

    @property
    def may_begin(self) -> bool:
        """Whether a stage is worth beginning."""
        return self.left >= self.least


class Stop:
    """Whether this process was told to stop, outside of a pool, which notes that itself."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    @contextmanager
    def heeding(self) -> Iterator[None]:
        """Notes SIGINT and SIGTERM while the body runs; a second Ctrl-C ends it."""
        heeded = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._note) for number in heeded}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and number in self.signals:
            raise KeyboardInterrupt
        self.signals.append(number)

    @property
    def status(self) -> int:
        """128 and the first signal, as a shell says it."""
        return 128 + self.signals[0]
