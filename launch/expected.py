"""Every cell that the sweeps in conf/sweep consist of, one JSON line each, for programs that must not import the suite.

    python -m launch.expected table1 figure1
    python -m launch.expected                  # all of conf/sweep

A line has `sweep`, `run_id`, `model`, `task`, `optimizer`, `precision`, `seed`, `lr`, `steps`, `variant` (what else
the sweep varies, as {"optimizer.k": 4}) and `command`, which runs that cell alone. Cells of one run are one line, the
first of them: a grid may list a learning rate twice, and a run without steps has none.
"""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from launch import parser
from launch.sweep import Run, Sweep
from zo import config
from zo.config import ConfigError, RunConfig, command_line

COORDINATES = ("model", "task", "optimizer", "precision", "seed", "lr")
"""Keys that have a column of their own; every other one that varies, but for `lr_index`, is a variant."""


def expected(sweep: str) -> list[dict[str, Any]]:
    """Returns the cells of one sweep, each run once, in the order in which it runs them.

    Raises:
        ConfigError: If there is no such sweep, or one of its runs could not be made.
    """
    if sweep not in all_sweeps():
        names = ", ".join(all_sweeps())
        raise ConfigError([config.Problem("sweep", sweep, f"must be one of {names}")])
    given = command_line.parameters(sweep)
    swept = [key for key, value in given.items() if any(sign in value for sign in ",([")]
    return [_cell(sweep, run, swept) for run in Sweep.of([f"sweep={sweep}"]).runs]


def all_sweeps() -> list[str]:
    """Returns the names of the files in conf/sweep."""
    return sorted(path.stem for path in (command_line.CONFIG_DIR / "sweep").glob("*.yaml"))


def _cell(sweep: str, run: Run, swept: Sequence[str]) -> dict[str, Any]:
    """Returns the line of one run; `swept` are the keys with a list, a choice or a range of values."""
    cfg, values = run.cfg, {key: _value(run.cfg, key) for key in swept}
    typed = {key: v if isinstance(v, str) else json.dumps(v) for key, v in values.items()}
    choices = [f"{key}={text}" for key, text in typed.items()]
    return {
        "sweep": sweep,
        "run_id": run.run_id,
        **{key: _value(cfg, key) for key in COORDINATES},
        "steps": cfg.steps,
        "variant": {k: v for k, v in values.items() if k not in (*COORDINATES, "lr_index")},
        "command": shlex.join(["python", "train.py", f"sweep={sweep}", *choices]),
    }


def _value(cfg: RunConfig, key: str) -> Any:
    """Returns a run's value of a swept key; a group's is the name of its choice."""
    value: Any = cfg
    for part in key.split("."):
        value = value[part] if isinstance(value, Mapping) else getattr(value, part)
    is_choice = is_dataclass(value)
    return value.name if is_choice else value


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    made = parser("expected", __doc__)
    made.add_argument("sweeps", nargs="*", metavar="SWEEP", help="default: all of conf/sweep")
    args = made.parse_args(argv)
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
