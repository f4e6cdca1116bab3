"""The command `zo`, in a checkout also `python -m zo`. It declares all commands, and imports the one that is called."""

import difflib
import importlib
import runpy
import sys
from collections.abc import Sequence
from typing import NamedTuple

from zo.extras import missing, print_every_character


class Command(NamedTuple):
    """A command of `zo`."""

    function: str  # module:function; it takes arguments and returns the exit status
    arguments: str  # as the list of commands shows them
    help: str
    first: tuple[str, ...] = ()  # arguments that the function gets before those that are typed


SETTINGS, ANALYSIS = "KEY=VALUE ...", "analysis.report.command:main"
# fmt: off
COMMANDS = {
    "train": Command("", SETTINGS, "one run, or with -m a grid; in a checkout also python train.py"),
    "submit": Command("launch.submit:main", SETTINGS, "the missing runs of a sweep, on a cluster or this machine"),
    "status": Command("launch.status:main", SETTINGS, "what of a sweep is done"),
    "compare": Command("launch.stages:main", "SWEEP", "all stages of a comparison: tuning, choice, runs, tables"),
    "resume": Command("zo.run.__main__:command", "DIR", "a run goes on"),
    "log": Command("zo.run.__main__:log", "DIR ...", "W&B's file of runs that ended without one"),
    "tables": Command(ANALYSIS, "[SWEEP ...]", "tables and figures from W&B logs", ("tables",)),
    "choose": Command(ANALYSIS, "SWEEP", "the settings that tuning runs chose", ("choose",)),
    "record": Command(ANALYSIS, "DIR SWEEP ...", "ended runs as files to be committed", ("record",)),
    "paper": Command(ANALYSIS, "", "the paper's tables, each number beside the measured one", ("paper",)),
    "report": Command(ANALYSIS, "", "one page of everything", ("report",)),
    "dashboard": Command(ANALYSIS, "", "the W&B workspace of a project", ("dashboard",)),
    "export": Command("zo.export:main", "RUN", "a run's model as a directory that transformers loads"),
    "predict": Command("zo.predict:main", "RUN FILE", "predictions for the rows of a file"),
    "trajectory": Command("zo.trajectory:main", "info RUN", "what a trajectory file holds; or replay"),
    "show": Command("zo.tasks.show:main", SETTINGS, "examples of a task, as the model reads them"),
}
# fmt: on
ALONE = ("trajectory",)
"""Commands that need only the library: a trajectory may be a record of an optimizer."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command that is named first; returns its exit status."""
    print_every_character()
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        lines = (f"  zo {f'{name} {of.arguments}':26}{of.help}" for name, of in COMMANDS.items())
        print("ZO suite: zeroth-order fine-tuning of language models.", "", *lines, sep="\n")
        print("\nEach has --help.")
        return 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        meant = f"did you mean {close[0]}? It" if close else "it"
        said = f"zo: no command {name!r}; {meant} must be one of {', '.join(COMMANDS)}"
        print(said, file=sys.stderr)
        return 2
    if name == "resume":
        from zo.run import signals

        signals.end_at_once()  # first: what follows takes seconds to import
    try:
        from zo.config.presets import SUITE
    except ModuleNotFoundError as error:
        if name not in ALONE:
            return missing("zo", error)
    else:
        sys.path.insert(0, str(SUITE))
    if name == "train":  # Hydra looks for conf beside a file
        sys.argv = [str(SUITE / "train.py"), *arguments]
        runpy.run_path(sys.argv[0], run_name="__main__")
        return 0
    command = COMMANDS[name]
    module, _, function = command.function.partition(":")
    work = getattr(importlib.import_module(module), function)
    return int(work([*command.first, *arguments]))


if __name__ == "__main__":
    sys.exit(main())
