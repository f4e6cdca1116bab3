"""What a person sees of a run: a bar with loss, best accuracy, step time and time left, and a line per evaluation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

SMOOTHING = 0.05
"""Weight of the newest loss in the loss that is shown."""


class Progress:
    """A context manager around one run. Without a terminal it prints the lines and no bars.

    Args:
        title: Shown before the bar.
        steps: Length of the bar.
    """

    def __init__(self, title: str, steps: int):
        self.title = title
        self.loss: float | None = None
        console = Console(soft_wrap=True, highlight=False)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._steps = self._bars.add_task("step", total=steps or None, note="", visible=steps > 0)
        self._seen = 0

    def __enter__(self) -> "Progress":
        self._bars.console.print(self.title)
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin_at(self, step: int) -> None:
        """Counts the steps that an earlier attempt made."""
        self._bars.reset(self._steps, completed=step)

    @contextmanager
    def replaying(self, steps: int) -> Iterator[Callable[[int], None]]:
        """Shows a second bar while steps are made again; yields a function to be told the step that is reached."""
        task = self._bars.add_task("replay", total=steps or None, note="", visible=steps > 0)
        try:
            yield lambda step: self._bars.update(task, completed=step)
        finally:
            self._bars.remove_task(task)

    def advance(self, loss: float, best_accuracy: float) -> None:
        """Counts a step."""
        self.loss = loss if self.loss is None else self.loss + SMOOTHING * (loss - self.loss)
        speed = self._bars.tasks[0].finished_speed or self._bars.tasks[0].speed
        pace = f"{1e3 / speed:.0f} ms/step" if speed else ""
        best = f"best val {best_accuracy:.1%}" if best_accuracy >= 0 else ""
        note = "  ".join(part for part in (f"loss {self.loss:.4f}", best, pace) if part)
        self._bars.update(self._steps, advance=1, note=note)

    @contextmanager
    def evaluating(self, examples: int) -> Iterator[Callable[[int], None]]:
        """Shows a second bar; yields a function to be told how many more examples are scored."""
        task = self._bars.add_task("evaluate", total=examples, note="")
        try:
            yield lambda count: self._bars.advance(task, count)
        finally:
            self._bars.remove_task(task)

    def say(self, line: str) -> None:
        """Prints a line above the bars."""
        self._bars.console.print(f"  {line}")
