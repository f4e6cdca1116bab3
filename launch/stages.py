"""Makes a comparison, one stage after the other: tuning runs, the choice of settings, reporting runs, tables.

    zo compare compare
    zo compare reward --dry-run        print the commands

The same command goes on where it was stopped: what has ended stays.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

from launch import python_path
from launch.profile import register
from zo.config import ConfigError, command_line
from zo.config.arms import Staged
from zo.extras import alias, parser


def commands(stages: Sequence[Staged]) -> Iterator[list[str]]:
    """Yields the commands of `zo` that are called in turn."""
    for stage in stages:
        if stage.of:
            taken = ["--of", *stage.of, "--best", str(stage.best)]
            yield ["choose", stage.name, *taken]
        yield ["train", "-m", *f"sweep={stage.typed}".split()]
    yield ["tables", stages[-1].name]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status of the first one that fails, else 0."""
    made = parser("compare", __doc__)
    made.add_argument("sweep", help="a comparison in conf/sweep")
    made.add_argument("--dry-run", action="store_true", help="print the commands")
    args = made.parse_args(argv)
    register()
    try:
        stages = command_line.stages(args.sweep)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if not args.dry_run:
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the command that runs
    env = {**os.environ, "PYTHONPATH": python_path()}
    for command in commands(stages):
        print(shlex.join(["zo", *command]), flush=True)
        words = [sys.executable, "-m", "zo", *command]
        if not args.dry_run and (code := subprocess.call(words, env=env)):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(alias("compare", main))
