"""Every cell that the sweeps in conf/sweep consist of, one JSON line each, for programs that must not import the suite.

    python -m launch.expected table1 figure1
    python -m launch.expected                  # all of conf/sweep

A line has `sweep`, `run_id`, `model`, `task`, `optimizer`, `precision`, `seed`, `lr`, `steps`, `variant` (what else
the sweep varies, as {"optimizer.k": 4}), `command`, which runs that cell alone, and in a comparison `line` and `role`
(zo.config.lines). Cells of one run are one line, the
first of them: a grid may list a learning rate twice, and a run without steps has none.
"""

import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from launch import parser
from launch.sweep import Run, Sweep
from zo import config
from zo.config import ConfigError, command_line
from zo.config.lines import NotChosenError
from zo.extras import print_every_character

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
    asked = command_line.read([f"sweep={sweep}"], multirun=True)
    given = asked.sweeper.params or {}
    swept = [key for key, value in given.items() if any(sign in value for sign in ",([")]
    runs = Sweep.composed(asked, whole=True).runs
    of_lines = {key: None for run in runs if run.line for key in run.line.values}
    return [_cell(sweep, run, swept, list(of_lines)) for run in runs]


def all_sweeps() -> list[str]:
    """Returns the names of the files in conf/sweep."""
    return sorted(path.stem for path in (command_line.CONFIG_DIR / "sweep").glob("*.yaml"))


def _cell(sweep: str, run: Run, swept: Sequence[str], of_lines: Sequence[str]) -> dict[str, Any]:
    """Returns the line of one run.

    Args:
        sweep: Its sweep.
        run: The run.
        swept: Keys with a list, a choice or a range of values.
        of_lines: Keys that a line of a comparison sets.
    """
    cfg = run.cfg
    values = {key: command_line.value_of(cfg, key) for key in (*swept, *of_lines)}
    values = {key: value for key, value in values.items() if value is not None}
    typed = {key: v if isinstance(v, str) else json.dumps(v) for key, v in values.items()}
    choices = [f"{key}={text}" for key, text in typed.items()]
    varied = [*swept, *(run.line.values if run.line else ())]
    plain = (*COORDINATES, "lr_index")
    return {
        "sweep": sweep,
        "run_id": run.run_id,
        **{key: command_line.value_of(cfg, key) for key in COORDINATES},
        "steps": cfg.steps,
        "line": run.line.name if run.line else "",
        "role": run.line.role if run.line else "",
        "variant": {k: v for k, v in values.items() if k in varied and k not in plain},
        "command": shlex.join(["python", "train.py", f"sweep={sweep}", *choices]),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    made = parser("expected", __doc__)
    made.add_argument("sweeps", nargs="*", metavar="SWEEP", help="default: all of conf/sweep")
    args = made.parse_args(argv)
    config.register()
    try:
        for sweep in dict.fromkeys(args.sweeps or all_sweeps()):
            with suppress(
                NotChosenError
            ):  # a sweep whose settings wait for tuning runs has no cells
                for cell in expected(sweep):
                    print(json.dumps(cell), flush=True)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    print_every_character()
    sys.exit(main())
