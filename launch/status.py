"""Where a sweep's runs stand: finished, collapsed, running, queued, interrupted, failed or missing.

    python -m launch.status sweep=table1
    python -m launch.status sweep=table1 --failed         every failed run with the last line of its error
    python -m launch.status sweep=table1 --list           every run

Collapsed runs are results: they count as finished. Running is what a live process holds; queued is what waits in SLURM
or in a local process's list; interrupted has saved and waits for python -m launch.submit, as missing does.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from launch.profile import register
from launch.records import QueueError
from launch.sweep import ENDED, STATES, Run, Standing, Sweep, counted, standings
from zo import config
from zo.config import ConfigError

PIPE_WIDTH = 160  # characters, where there is no terminal to ask


def show(sweep: Sweep, found: Mapping[str, Standing]) -> None:
    """Prints a row per model, precision and method, and the totals as the last line."""
    table = Table(box=None, header_style="bold")
    for name in ("model", "precision", "method"):
        table.add_column(name)
    for name in ("runs", *STATES):
        table.add_column(name, justify="right")
    groups: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in sweep.runs:
        groups[run.kind].append(run)
    for kind, runs in groups.items():
        counts = Counter(found[run.run_id].state for run in runs)
        table.add_row(*kind, str(len(runs)), *(str(counts[state] or "·") for state in STATES))
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)
    done = sum(standing.state in ENDED for standing in found.values())
    console.print(f"{done} of {len(sweep.runs)} runs done: {counted(found)}")


def list_runs(runs: Sequence[Run], found: Mapping[str, Standing]) -> None:
    """Prints a line per run: id, state, choices, and what there is to say."""
    for run in runs:
        standing = found[run.run_id]
        note = f"  {standing.note}" if standing.note else ""
        print(f"{run.run_id}  {standing.state:11}  {config.describe(run.cfg)}{note}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    parser = argparse.ArgumentParser(
        "python -m launch.status",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="as for train.py -m")
    parser.add_argument("--list", action="store_true", help="list every run")
    parser.add_argument("--failed", action="store_true", help="list the failed runs")
    args = parser.parse_args(argv)
    config.register()
    register()
    try:
        sweep = Sweep.of(args.overrides)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        found = standings(sweep.runs)
    except QueueError as error:
        print(f"{error}: jobs that have not ended are shown as queued", file=sys.stderr)
        found = standings(sweep.runs, ask_queue=False)
    if args.list or args.failed:
        states = STATES if args.list else ("failed",)
        list_runs([run for run in sweep.runs if found[run.run_id].state in states], found)
    show(sweep, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
