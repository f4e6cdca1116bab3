"""The console command `zo`: the suite without a copy of its repository.

  zo train KEY=VALUE ...    one run, or with -m a grid: the same as python train.py
  zo submit KEY=VALUE ...   the missing runs of a sweep, on a cluster or this machine
  zo status KEY=VALUE ...   what of a sweep is done
  zo resume DIR             a run goes on
  zo tables [SWEEP ...]     tables and figures from W&B logs
  zo choose SWEEP           the settings that tuning runs chose
  zo report                 one page of everything
  zo export RUN             a run's model as a directory that transformers loads
  zo predict RUN FILE       predictions for the rows of a file
  zo trajectory info RUN    what a trajectory file holds; or replay
  zo show KEY=VALUE ...     examples of a task, as the model reads them

Each has --help.
"""

import runpy
import sys
from collections.abc import Callable
from functools import partial

from zo.extras import missing, print_every_character

COMMANDS: dict[str, tuple[str, ...]] = {
    "train": ("train",),
    "submit": ("launch.submit",),
    "status": ("launch.status",),
    "resume": ("zo.run",),
    "tables": ("analysis", "tables"),
    "choose": ("analysis", "choose"),
    "report": ("analysis", "report"),
    "export": ("zo.export",),
    "predict": ("zo.predict",),
    "trajectory": ("zo.trajectory",),
    "show": ("zo.tasks.show",),
}
"""Name -> the module that does it, and what it is given first."""


def _write(write: Callable[[str], int], text: str) -> int:
    return write(in_console_words(text))


def in_console_words(text: str) -> str:
    """Returns a text whose commands are this one's: `zo submit` for `python -m launch.submit`."""
    for name, module in COMMANDS.items():
        text = text.replace(f"python -m {' '.join(module)}", f"zo {name}")
    return text.replace("python train.py", "zo train")


def main() -> None:
    """Runs the module that a command names."""
    print_every_character()
    for stream in (sys.stdout, sys.stderr):
        setattr(stream, "write", partial(_write, stream.write))  # noqa: B010  a checker knows methods alone
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(__doc__)
        return
    if name not in COMMANDS:
        print(f"zo: no command {name!r}; must be one of {', '.join(COMMANDS)}", file=sys.stderr)
        sys.exit(2)
    try:
        from zo.config.presets import SUITE
    except ModuleNotFoundError as error:
        sys.exit(missing("zo", error))
    module, *first = COMMANDS[name]
    sys.path.insert(0, str(SUITE))
    sys.argv = [f"zo {name}", *first, *arguments]
    if module == "train":  # Hydra looks for conf beside a file
        sys.argv[0] = str(SUITE / "train.py")
        runpy.run_path(str(SUITE / "train.py"), run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
