"""Every cell that the sweeps in conf/sweep consist of, one JSON line each, for programs that must not import the suite.

    python -m launch.expected table1 figure1
    python -m launch.expected                  # all of conf/sweep

A line has `sweep`, `run_id`, `model`, `task`, `optimizer`, `precision`, `seed`, `lr`, `steps`, `variant` (what else
the sweep varies, as {"optimizer.k": 4}) and `command`, which runs that cell alone. Cells of one run are one line, the
first of them: a grid may list a learning rate twice, and a run without steps has none.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from zo import config
from zo.config import ConfigError, RunConfig, command_line
from zo.config.identity import run_id

COORDINATES = ("model", "task", "optimizer", "precision", "seed", "lr", "lr_index")
"""Keys of a sweep that have a column of their own; every other one that varies is a variant."""


def expected(sweep: str) -> list[dict[str, Any]]:
    """Returns the cells of one sweep, each run once, in the order in which it runs them.

    Raises:
        ConfigError: If there is no such sweep, or one of its runs could not be made.
    """
    path = command_line.CONFIG_DIR / "sweep" / f"{sweep}.yaml"
    if not path.exists():
        names = ", ".join(all_sweeps())
        raise ConfigError([config.Problem("sweep", sweep, f"must be one of {names}")])
    swept = [key for key, given in command_line.parameters(sweep).items() if _several(given)]
    runs = command_line.runs([f"sweep={sweep}"])
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        cell = _cell(sweep, run, {key: _value(run, key) for key in swept})
        found.setdefault(cell["run_id"], cell)
    return list(found.values())


def all_sweeps() -> list[str]:
    """Returns the names of the files in conf/sweep."""
    return sorted(path.stem for path in (command_line.CONFIG_DIR / "sweep").glob("*.yaml"))


def _cell(sweep: str, run: RunConfig, swept: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the line of one run."""
    choices = [f"{key}={_typed(value)}" for key, value in swept.items()]
    return {
        "sweep": sweep,
        "run_id": run_id(run),
        "model": run.model.name,
        "task": run.task.name,
        "optimizer": run.optimizer.name,
        "precision": run.precision.name,
        "seed": run.seed,
        "lr": run.lr,
        "steps": run.steps,
        "variant": {key: value for key, value in swept.items() if key not in COORDINATES},
        "command": shlex.join(["python", "train.py", f"sweep={sweep}", *choices]),
    }


def _several(given: str) -> bool:
    """Returns whether a sweep's parameter stands for more than one value: a list, a choice or a range."""
    return any(sign in given for sign in ",([")


def _value(run: RunConfig, key: str) -> Any:
    """Returns a run's value of a swept key; a group's is the name of its choice."""
    value: Any = run
    for part in key.split("."):
        value = value[part] if isinstance(value, Mapping) else getattr(value, part)
    is_choice = is_dataclass(value)
    return value.name if is_choice else value


def _typed(value: Any) -> str:
    """Returns a value as it is typed on Hydra's command line."""
    return value if isinstance(value, str) else json.dumps(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    parser = argparse.ArgumentParser(
        "python -m launch.expected",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help="default: all of conf/sweep")
    args = parser.parse_args(argv)
    config.register()
    try:
        for sweep in dict.fromkeys(args.sweeps or all_sweeps()):
            for cell in expected(sweep):
                print(json.dumps(cell), flush=True)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
