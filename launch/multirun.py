"""Makes the runs of `zo train -m`: one after the other in this process, or as jobs of a launcher, which it watches."""

import shlex
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from launch import manifest
from launch.profile import LocalProfile
from launch.records import QueueError
from launch.status import hours_left
from launch.submit import UNUSABLE, Submission
from launch.sweep import Standing, Sweep, counted, standings
from zo.config import describe
from zo.config.command_line import CommandLine
from zo.run.multirun import Multirun
from zo.run.signals import CTRL_C

LOCAL_S, SLURM_S = 5.0, 30.0  # Between two looks; SLURM's controller serves many users
GOING = ("running", "queued")
SHOWN_FAILURES = 20


def make(asked: CommandLine) -> int:
    """Makes the runs that a command line asks for, and shows how they go.

    Returns:
        Exit status: 0 if all runs finished, 1 if not, 2 for bad input, 130 after Ctrl-C, 143 if told to stop.
    """
    sweep = Sweep.composed(asked)
    if asked.launcher[0] == "basic":
        manifest.write(sweep.manifest, Path(asked.cells[0][0].out))
    if not sweep.runs:
        print(sweep.nothing_to_do)
        return 0
    if asked.launcher[0] != "basic":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it says how the jobs go on
        is_local = isinstance(asked.launcher[1], LocalProfile)  # whose runs are to be stopped
        signal.signal(signal.SIGTERM, signal.default_int_handler if is_local else signal.SIG_DFL)
        return _submit_and_watch(sweep)
    runs = [run.cfg for run in sweep.runs]
    print(hours_left(sweep, standings(sweep.runs, ask_queue=False), local=True), flush=True)
    return Multirun(runs).run()


def _submit_and_watch(sweep: Sweep) -> int:
    """Submits what is not finished, also what failed before, and shows how it goes until nothing waits or runs.

    On SLURM the jobs go on if this process ends; Ctrl-C ends local runs.
    """
    board = None
    try:
        submission = Submission(sweep)
        board = Board(sweep, submission.on_slurm)
        submission.give(retry_failed=True)
        with board.bar:
            return board.until_done()
    except UNUSABLE as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # at any moment: between sbatch and the first look, too
        if board is not None:
            return board.interrupted(submission.stop())
        print("Nothing was submitted", file=sys.stderr)
        return CTRL_C


class Board:
    """Shows where a sweep's runs stand, in a bar. Without a terminal it prints a line whenever a count changes."""

    def __init__(self, sweep: Sweep, on_slurm: bool):
        self._sweep = sweep
        self._on_slurm = on_slurm
        self._found: dict[str, Standing] = {}
        self._told = ""
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

    def until_done(self) -> int:
        """Waits until no run waits or goes on; then prints the runs that have not ended, and the counts.

        Returns:
            0 if all finished, 1 if not.
        """
        quiet = 0
        while quiet < 2:  # seen twice: a job is between queue and lock for an instant
            self._refresh()
            going = any(standing.state in GOING for standing in self._found.values())
            quiet = 0 if going or not self._found else quiet + 1
            if quiet < 2:
                time.sleep((SLURM_S if self._on_slurm else LOCAL_S) if going else 1.0)
        self.bar.stop()
        found = [(run, self._found[run.run_id]) for run in self._sweep.runs]
        failed = [(run, standing) for run, standing in found if not standing.ended]
        for run, standing in failed[:SHOWN_FAILURES]:
            note = f": {standing.note}" if standing.note else ""
            where = f", see {run.directory}" if standing.state == "failed" else ""
            self._console.print(f"{describe(run.cfg)}  {standing.state}{note}{where}")
        if more := failed[SHOWN_FAILURES:]:
            self._console.print(f"and {counted(standing for _, standing in more)}")
        self._console.print(f"{len(found)} runs: {counted(self._found.values())}")
        return 1 if failed else 0

    def interrupted(self, code: int) -> int:
        """Says how things stand when this process is told to stop; returns its exit status."""
        self.bar.stop()
        with suppress(KeyboardInterrupt):  # a second one does not wait for a queue that is slow
            self._refresh()
        if self._found:
            self._console.print(counted(self._found.values()))
        said = "The runs are saved. The same command continues them, or: zo submit"
        if self._on_slurm:
            said = "Jobs that were submitted go on. How: zo status"
        self._console.print(f"{said} {shlex.join(self._sweep.asked.overrides)}")
        return code

    def _refresh(self) -> None:
        """Looks again; runs that ended need no second look."""
        found = self._found
        left = [r for r in self._sweep.runs if r.run_id not in found or not found[r.run_id].ended]
        try:
            found |= standings(left)
            note = counted(found.values())
        except QueueError as error:  # a controller is restarted; the next look may do better
            note = str(error)
        done = sum(standing.ended for standing in found.values())
        self.bar.update(self._task, completed=done, note=note)
        if not self._console.is_terminal and note != self._told:
            self._console.print(f"{time.strftime('%H:%M:%S')}  {note}")
        self._told = note
