"""What a person sees of a run: a bar with loss, best accuracy, step time and time left, and a line per evaluation."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from zo.distributed.config import follows

SMOOTHING = 0.05  # Weight of the newest loss in the loss that is shown
BAR_WIDTHS = 6, 24  # Of the bar in characters: least and most
TIME_LEFT = "-:--:--"
GAPS = 4  # Blanks between the five columns


class Quietening(Console):
    """A console that says no more once nobody reads it, as behind `| head`; what it tells of goes on."""

    def on_broken_pipe(self) -> None:
        """Sends what is still printed nowhere."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Screen:
    """Lines for people: wrapped between words on a terminal, whole in a pipe or file.

    Of several processes of a run only the first one prints.
    """

    def __init__(self) -> None:
        self.console = Quietening(highlight=False, quiet=follows())

    def say(self, line: str, indent: int = 0, wraps: bool = True) -> None:
        """Prints a line; on a terminal all of its rows are indented. `wraps=False` keeps a path whole, to be copied."""
        if wraps and self.console.is_terminal:
            self.console.print(Padding(Text(line), (0, 0, 0, indent)))
        else:
            self.console.print(Text(" " * indent + line), soft_wrap=True)


class Progress:
    """A context manager around one run. Without a terminal it prints the lines and no bars."""

    def __init__(self, steps: int):
        self.loss: float | None = None
        self._screen = Screen()
        self._length = len(f"{steps}/{steps}")
        self._bar = BarColumn(bar_width=BAR_WIDTHS[1])
        self._bars = Bars(
            TextColumn("{task.description}"),
            self._bar,
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=self._screen.console,
            transient=True,
            disable=not self._screen.console.is_terminal,
        )
        self._steps = self._bars.add_task("step", total=steps or None, note="", visible=steps > 0)

    def __enter__(self) -> "Progress":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin_at(self, step: int) -> None:
        """Counts the steps that an earlier attempt made."""
        self._bars.reset(self._steps, completed=step)

    def advance(self, loss: float, best: str) -> None:
        """Counts a step."""
        self.loss = loss if self.loss is None else self.loss + SMOOTHING * (loss - self.loss)
        speed = self._bars.tasks[0].finished_speed or self._bars.tasks[0].speed
        parts = [f"loss {self.loss:.4f}"]
        if best:
            parts.append(f"best val {best}")
        if speed:
            parts.append(f"{1e3 / speed:.0f} ms/step")
        self._bars.update(self._steps, advance=1, note=self._fit(parts))

    @contextmanager
    def counting(self, what: str, total: int, more: bool = True) -> Iterator[Callable[[int], None]]:
        """Shows a second bar; yields a function to be told how many `more` are done, or which step is reached."""
        task = self._bars.add_task(what, total=total or None, note="", visible=total > 0)
        tell = self._bars.advance if more else lambda task, n: self._bars.update(task, completed=n)
        try:
            yield lambda n: tell(task, n)
        finally:
            self._bars.remove_task(task)

    def say(self, line: str) -> None:
        """Prints a line above the bars."""
        self._screen.say(line, indent=2)

    def _fit(self, parts: list[str]) -> str:
        """Returns as many of the note's parts as there is room for, and gives the bar the rest."""
        least, most = BAR_WIDTHS
        beside = len("evaluate") + self._length + len(TIME_LEFT) + GAPS
        room = self._screen.console.width - beside
        while len(parts) > 1 and len("  ".join(parts)) + least > room:
            parts = parts[:-1]
        note = "  ".join(parts)
        self._bar.bar_width = max(least, min(most, room - len(note)))
        return note
