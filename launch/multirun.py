"""Makes the runs of `train.py -m`: one after the other in this process, or as jobs of a launcher."""

import signal
from pathlib import Path

from launch import manifest
from launch.profile import LocalProfile
from launch.status import hours_left
from launch.submit import submit_and_watch
from launch.sweep import Sweep, standings
from zo.config.command_line import CommandLine
from zo.run.multirun import Multirun


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
        return submit_and_watch(asked, sweep)
    runs = [run.cfg for run in sweep.runs]
    print(hours_left(sweep, standings(sweep.runs, ask_queue=False), local=True), flush=True)
    return Multirun.of(runs).run()
