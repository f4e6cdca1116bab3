"""How a call of `launch.measured` goes, live; and its tables at the end."""

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from launch.measured.clock import Clock
from launch.measured.outcome import Outcome
from launch.pool import DONE, Pool

PIPE_WIDTH = 120  # characters, where there is no terminal to ask
QUIET_S = 15.0
"""Without a terminal, a line at most this often."""


class _Left(ProgressColumn):
    """Time left for runs."""

    def __init__(self, clock: Clock):
        super().__init__()
        self._clock = clock

    def render(self, _: Task) -> Text:
        """Returns minutes and seconds."""
        return Text(f"{_clock_face(self._clock.left)} left")


class Display:
    """Shows the stage, how many of its runs are done, and the time that is left.

    Args:
        clock: The call's.
    """

    def __init__(self, clock: Clock):
        self._clock = clock
        self._console = _console()
        self._told = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            _Left(clock),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, note="")

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, what: str) -> None:
        """Shows what is done between runs."""
        self._progress.update(self._task, description=what, completed=0, total=None, note="")
        self._line(what)

    def stage(self, name: str, ended: int, total: int, pool: Pool) -> None:
        """Shows how far a stage is; to be called when a run starts or ends.

        Args:
            name: The stage.
            ended: Its runs that had ended before.
            total: All of its runs.
            pool: Makes the others.
        """
        done = ended + sum(code == DONE for code in pool.codes.values())
        failed = len(pool.failures)
        note = f"{failed} failed" if failed else ""
        self._progress.update(self._task, description=name, completed=done, total=total, note=note)
        now = time.monotonic()
        if now - self._told >= QUIET_S or done == total:
            self._told = now
            self._line(f"{name}: {done} of {total}{', ' * bool(note)}{note}")

    def _line(self, text: str) -> None:
        if not self._console.is_terminal:
            left = _clock_face(self._clock.left)
            self._console.print(f"{time.strftime('%H:%M:%S')}  {text}  ({left} left)")


def show_summary(outcomes: Sequence[Outcome], problems: Sequence[str], command: str) -> None:
    """Prints a row per stage, what went wrong, and the command to go on with."""
    table = Table(box=None, header_style="bold")
    table.add_column("stage")
    for name in ("runs", "finished", "collapsed", "failed", "left", "minutes"):
        table.add_column(name, justify="right")
    table.add_column("")
    for outcome in outcomes:
        counts = outcome.counts
        numbers = (
            (len(outcome.runs), *(counts[s] for s in ("finished", "collapsed", "failed")))
            if outcome.runs is not None
            else ("?",) * 4
        )
        left = "?" if outcome.left is None else outcome.left
        cells = [*map(str, (*numbers, left)), f"{outcome.seconds / 60:.1f}", outcome.note]
        table.add_row(outcome.stage.name, *cells)
    console = _console()
    console.print(table)
    for outcome in outcomes:
        for run in outcome.runs or []:
            standing = outcome.found[run.run_id]
            if standing.state == "failed":
                console.print(f"{run.run_id} failed: {standing.note}, see {run.directory}")
    for problem in problems:
        console.print(problem)
    if command:
        console.print(f"to go on: {command}")


def show_prediction(rows: Sequence[tuple[str, int, int, float | None]]) -> None:
    """Prints a row per stage: runs, how many have ended, expected minutes of the others."""
    table = Table(box=None, header_style="bold")
    table.add_column("stage")
    for name in ("runs", "done", "minutes left, about"):
        table.add_column(name, justify="right")
    for name, runs, done, minutes in rows:
        table.add_row(name, str(runs), str(done), "?" if minutes is None else f"{minutes:.1f}")
    console = _console()
    console.print(table)
    console.print(
        "Minutes: steps times milliseconds per step (measured here, else the paper's Table 4), and"
    )
    console.print(
        "10 s for a run to start; without evaluations. ?: no run of the kind has finished yet."
    )


def _console() -> Console:
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def _clock_face(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d}"
