"""The console command `zo`: the suite without a copy of its repository.

  zo train KEY=VALUE ...    one run, or with -m a grid: the same as python train.py
  zo status KEY=VALUE ...   what of a sweep is done
  zo tables [SWEEP ...]     tables and figures from W&B logs
  zo report                 one page of everything
  zo export RUN             a run's model as a directory that transformers loads
  zo predict RUN FILE       predictions for the rows of a file
  zo show KEY=VALUE ...     examples of a task, as the model reads them

Each has --help.
"""

import runpy
import sys

from zo.extras import missing, print_every_character

COMMANDS: dict[str, tuple[str, ...]] = {
    "train": ("train",),
    "status": ("launch.status",),
    "tables": ("analysis", "tables"),
    "report": ("analysis", "report"),
    "export": ("zo.export",),
    "predict": ("zo.predict",),
    "show": ("zo.tasks.show",),
}
"""Name -> the module that does it, and what it is given first."""


def main() -> None:
    """Runs the module that a command names."""
    print_every_character()
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
