"""What there is of a sweep, what runs, what is missing, and how many hours that takes.

    zo status sweep=table1
    zo status sweep=table1 --list           every run, step and loss of those that run
    zo status sweep=table1 --failed         every failed run with the last line of its error
    zo status optimizer=bszo,mezo lr=1e-6,1e-7 task=rte --step-ms bszo=171,mezo=116
    zo status sweep=table1 out=DIR --manifest       write DIR/sweeps/table1.jsonl

A collapsed run is a result and counts as done. A live process holds a running run. A queued run waits in SLURM or in a
local process's list. `zo submit` submits interrupted and missing runs.

Hours are steps times the time per step: the median of this sweep's finished runs, else --step-ms, else what an H200
needed for the paper's Table 4, else the formula of docs/will-it-fit.md. Each number says which. Early stopping makes
runs shorter. Loading and evaluation come on top.
"""

import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from rich.console import Console
from rich.table import Table

from launch import manifest
from launch.profile import register
from launch.records import QueueError
from launch.sweep import STATES, Run, Standing, Sweep, counted, standings
from zo import config
from zo.config import ConfigError
from zo.extras import alias, parser
from zo.run.hours import ANY, StepTime, kind_of, step_times, summed
from zo.run.store import atomic

MS_PER_HOUR = 3.6e6
LAST_ROWS = 200  # that a run in progress is judged by
PIPE_WIDTH = 160  # characters, where there is no terminal to ask
NAMES = ("model", "precision", "method", "tasks")


Times: TypeAlias = Mapping[Hashable, StepTime | None]
"""Time of a step of each kind of runs, see `zo.run.hours.step_times`."""


def times_of(sweep: Sweep, typed: Mapping[str, float], formula: bool = True) -> Times:
    """Returns the step times of a sweep's runs that train; arguments as of `step_times`."""
    trained = [(run.cfg, run.directory) for run in sweep.runs if run.cfg.steps > 0]
    return step_times(trained, typed, formula)


def training_hours(
    runs: Iterable[Run], found: Mapping[str, Standing], times: Times
) -> list[tuple[float, str] | None]:
    """Returns the hours of each run that is yet to be trained, and where they come from; None where unknown."""
    left = (run.cfg for run in runs if run.cfg.steps > 0 and not found[run.run_id].ended)
    known = ((cfg.steps, times[kind_of(cfg)]) for cfg in left)
    return [of and (steps * of.ms / MS_PER_HOUR, of.source) for steps, of in known]


def hours_left(
    sweep: Sweep,
    found: Mapping[str, Standing],
    typed: Mapping[str, float] = MappingProxyType({}),
    local: bool = False,
) -> str:
    """Returns how many runs are left and how many hours of training they take, as far as step times are known.

    `local`: what is not known is neither estimated nor asked for, since the runs begin now.
    """
    hours = training_hours(sweep.runs, found, times_of(sweep, typed, formula=not local))
    unknown, known = hours.count(None), [of for of in hours if of is not None]
    cost = [summed(known)] * bool(known)
    if unknown and not local:
        cost.append(f"{unknown} of unknown step time (zo status --step-ms METHOD=N)")
    left = sum(not standing.ended for standing in found.values())
    return f"{left} run{'s' * (left != 1)} left" + ": " * bool(cost) + ", and ".join(cost)


def typed_times(text: str) -> dict[str, float]:
    """Returns what `--step-ms` gives: one number for all methods, or METHOD=NUMBER, joined by commas."""
    pairs = (part.rpartition("=") for part in text.split(","))
    return {method.strip(): float(number) for method, _, number in pairs}


def progress(run: Run) -> str:
    """Returns step, loss and hours left of a run in progress, by its last rows; nothing before its first step."""
    path = run.directory / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    rows = [row for line in lines[-LAST_ROWS:] if (row := atomic.unseal(line)) is not None]
    steps = [row for row in rows if "train/loss" in row]
    if not steps:
        return ""
    step, loss = steps[-1]["step"], steps[-1]["train/loss"]
    hours = statistics.median(row["time/step_s"] for row in steps) * (run.cfg.steps - step) / 3600
    return f"  step {step:,} of {run.cfg.steps:,}, loss {loss:.4f}, {hours:.1f} h left"


def show(sweep: Sweep, found: Mapping[str, Standing], typed: Mapping[str, float]) -> None:
    """Prints a row per model, precision and method, and the totals."""
    known_times = times_of(sweep, typed)
    groups: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in sweep.runs:
        groups[run.kind].append(run)
    there = {standing.state for standing in found.values()}
    states = [state for state in STATES if state in there]
    table = Table(box=None, header_style="bold")
    for name in (*NAMES, "runs", *states, "ms/step", "hours left", "from"):
        table.add_column(name, justify="left" if name in (*NAMES, "from") else "right")
    for names, runs in groups.items():
        counts = Counter(found[run.run_id].state for run in runs)
        numbers = (str(counts[state] or "·") for state in states)
        trained = (run.cfg for run in runs if run.cfg.steps > 0)
        times = dict.fromkeys(known_times[kind_of(cfg)] for cfg in trained)
        hours = training_hours(runs, found, known_times)
        timed = [step for step in times if step is not None]
        each = dict.fromkeys(f"{of(step.ms for step in timed):.1f}" for of in (min, max) if timed)
        sources = dict.fromkeys(step.source for step in timed)
        total = "?" if None in hours else f"{sum(of[0] for of in hours if of):.1f}"
        tasks = ", ".join(dict.fromkeys(run.cfg.task.name for run in runs))
        cost = (" to ".join(each) or "?", total, ", ".join(sources)) if times else ("", "0", "")
        table.add_row(*names, tasks, str(len(runs)), *numbers, *cost)
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)
    print(hours_left(sweep, found, typed))
    known = max(len(sweep.manifest) - len(found), 0)
    cells = len(sweep.asked.cells)
    shared = cells - len(found) - known
    others = [f"{known} recorded"] * bool(known)
    others += [f"{shared} the same run as another"] * bool(shared)
    note = f" ({', '.join([f'{cells} cells', *others])})" if others else ""
    done = sum(standing.ended for standing in found.values())
    print(f"{done} of {len(found)} runs done{note}: {counted(found.values())}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    made = parser("status", __doc__)
    made.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for zo train -m")
    made.add_argument("--list", action="store_true", help="list every run")
    made.add_argument("--failed", action="store_true", help="list the failed runs")
    words = "write the sweep's cells, so that tables have runs that were started one by one"
    made.add_argument("--manifest", action="store_true", help=words)
    given = "time per step where no run here measured one, for all methods or as bszo=171,mezo=116"
    made.add_argument("--step-ms", type=typed_times, default={}, metavar="MS", help=given)
    args = made.parse_args(argv)
    register()
    try:
        sweep = Sweep.of(args.overrides)
        methods = {run.cfg.optimizer.name for run in sweep.runs}
        if other := sorted(args.step_ms.keys() - methods - {ANY}):
            made.error(f"--step-ms {other[0]}=: the methods are {', '.join(sorted(methods))}")
        try:
            found = standings(sweep.runs)
        except QueueError as error:
            print(f"{error}: jobs that have not ended are shown as queued", file=sys.stderr)
            found = standings(sweep.runs, ask_queue=False)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    for run in sweep.runs:
        standing = found[run.run_id]
        if args.list or (args.failed and standing.state == "failed"):
            note = f"  {standing.note}" if standing.note else ""
            if standing.state == "running":
                note = progress(run) + note
            print(f"{run.run_id}  {standing.state:11}  {config.describe(run.cfg)}{note}")
    show(sweep, found, args.step_ms)
    if args.manifest:
        manifest.write(sweep.manifest, Path(sweep.asked.cells[0][0].out))
    return 0


if __name__ == "__main__":
    sys.exit(alias("status", main))
