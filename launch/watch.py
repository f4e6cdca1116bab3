"""How a sweep goes, live: a bar that counts, and a summary at the end."""

import shlex
import time
from contextlib import suppress

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from launch.records import Queue, QueueError
from launch.sweep import ENDED, Standing, Sweep, counted, standings
from zo.config import describe

REFRESH_S = 5.0
QUEUE_S = 60.0
GOING = ("running", "queued")
SHOWN_FAILURES = 20


class Board:
    """Shows where a sweep's runs stand, in a bar. Without a terminal it prints a line whenever a count changes."""

    def __init__(self, sweep: Sweep, jobs_go_on: bool):
        self._sweep = sweep
        self._jobs_go_on = jobs_go_on
        self._found: dict[str, Standing] = {}
        self._told = ""
        self._queue = Queue(QUEUE_S)
        self._console = Console(soft_wrap=True, highlight=False)
        self.bar = Progress(
            TextColumn(sweep.name),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self.bar.add_task("runs", total=len(sweep.runs), note="")

    def refresh(self) -> None:
        """Looks again; runs that ended need no second look."""
        ended = {name for name, standing in self._found.items() if standing.state in ENDED}
        left, note = [run for run in self._sweep.runs if run.run_id not in ended], ""
        try:
            self._found |= standings(left, queue=self._queue)
        except QueueError as error:  # a controller is restarted; the next look may do better
            note = str(error)
        note = note or counted(self._found)
        done = sum(standing.state in ENDED for standing in self._found.values())
        self.bar.update(self._task, completed=done, note=note)
        if not self._console.is_terminal and note != self._told:
            self._console.print(f"{time.strftime('%H:%M:%S')}  {note}")
        self._told = note

    def until_done(self) -> int:
        """Waits until no run waits or goes on; then prints the summary.

        Returns:
            0 if all finished, 1 if not.
        """
        quiet = 0
        while quiet < 2:  # seen twice: a job is between queue and lock for an instant
            self.refresh()
            going = any(standing.state in GOING for standing in self._found.values())
            quiet = 0 if going or not self._found else quiet + 1
            if not going:
                self._queue.forget()
            if quiet < 2:
                time.sleep(REFRESH_S if going else 1.0)
        return self._summary()

    def interrupted(self, code: int) -> int:
        """Says how things stand when this process is told to stop; returns its exit status."""
        self.bar.stop()
        with suppress(KeyboardInterrupt):  # a second one does not wait for a queue that is slow
            self.refresh()
        if self._found:
            self._console.print(counted(self._found))
        said = "The runs are saved. The same command continues them, or: python -m launch.submit"
        if self._jobs_go_on:
            said = "Jobs that were submitted go on. How: python -m launch.status"
        self._console.print(f"{said} {shlex.join(self._sweep.overrides)}")
        return code

    def _summary(self) -> int:
        """Prints the runs that have not ended, and the counts; returns 1 if there are such runs, else 0."""
        self.bar.stop()
        standings_ = [(run, self._found[run.run_id]) for run in self._sweep.runs]
        failed = [(run, standing) for run, standing in standings_ if standing.state not in ENDED]
        for run, standing in failed[:SHOWN_FAILURES]:
            note = f": {standing.note}" if standing.note else ""
            where = f", see {run.directory}" if standing.state == "failed" else ""
            self._console.print(f"{describe(run.cfg)}  {standing.state}{note}{where}")
        if more := {run.run_id: standing for run, standing in failed[SHOWN_FAILURES:]}:
            self._console.print(f"and {counted(more)}")
        self._console.print(f"{len(self._sweep.runs)} runs: {counted(self._found)}")
        return 1 if failed else 0
