"""What there is of a sweep, what runs, what is missing, and how many hours that takes.

    python -m launch.status sweep=table1
    python -m launch.status sweep=table1 --list           every run, step and loss of those that run
    python -m launch.status sweep=table1 --failed         every failed run with the last line of its error
    python -m launch.status optimizer=bszo,mezo lr=1e-6,1e-7 task=rte --step-ms 120

A collapsed run is a result and counts as done. A live process holds a running run. A queued run waits in SLURM or in a
local process's list. `python -m launch.submit` submits interrupted and missing runs.

Hours are steps times the time per step: the median of finished runs of the same model, precision and method, else
--step-ms, else the paper's time on one H200 (marked *). Early stopping makes runs shorter. Loading and evaluation come
on top.
"""

import csv
import json
import os
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress

from rich.console import Console
from rich.table import Table

from launch import ROOT, parser
from launch.profile import register
from launch.records import QueueError
from launch.sweep import ENDED, STATES, Run, Standing, Sweep, counted, standings
from zo import config
from zo.config import ConfigError
from zo.extras import print_every_character

MS_PER_HOUR = 3.6e6
PAPER = ROOT / "results" / "paper" / "table4.csv"
TAIL = 65_536  # bytes at the end of a run's rows
PIPE_WIDTH = 160  # characters, where there is no terminal to ask
Kind = tuple[str, str, str]  # model, precision, method


def step_times(
    sweep: Sweep, found: Mapping[str, Standing], given: float | None
) -> dict[Kind, tuple[float, str]]:
    """Returns milliseconds per step of each kind of run where they are known, and * for the paper's."""
    measured: dict[Kind, list[float]] = defaultdict(list)
    for run in sweep.runs:
        if (taken := found[run.run_id].status.get("time/step_ms_median")) is not None:
            measured[run.kind].append(float(taken))  # type: ignore[arg-type]
    with PAPER.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["quantity"] == "step_ms"]
    paper = {(row["model"], row["method"]): row["printed"] for row in rows}
    times = {}
    for kind in {run.kind for run in sweep.runs}:
        own = statistics.median(measured[kind]) if measured[kind] else given
        if own is not None:
            times[kind] = own, ""
        elif kind[::2] in paper:
            times[kind] = float(paper[kind[::2]]), "*"
    return times


def hours_left(
    sweep: Sweep, found: Mapping[str, Standing], given: float | None = None, local: bool = False
) -> str:
    """Returns how many runs are left and how many hours of training they take, as far as step times are known.

    `local`: what is not known is not asked for, since the runs begin now.
    """
    times, total, unknown, marks = step_times(sweep, found, given), 0.0, 0, set[str]()
    for run in sweep.runs:
        if found[run.run_id].state not in ENDED and run.cfg.steps > 0:
            ms, mark = times.get(run.kind, (0.0, ""))
            total, unknown = total + run.cfg.steps * ms / MS_PER_HOUR, unknown + (not ms)
            marks.add(mark)
    cost = []
    if total or not unknown:
        cost.append(f"{'on an H200 ' * ('*' in marks)}at most {total:,.1f} hours")
    if unknown and not local:
        cost.append(f"{unknown} runs of unknown step time (python -m launch.status --step-ms N)")
    done = sum(standing.state in ENDED for standing in found.values())
    return f"{len(found) - done} runs left" + ": " * bool(cost) + " and ".join(cost)


def progress(run: Run) -> str:
    """Returns step, loss and hours left of a run in progress, by its last rows; nothing before its first step."""
    rows = []
    try:
        with (run.directory / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().splitlines()
    except OSError:
        return ""
    for line in lines:
        with suppress(ValueError):  # torn, or begun before what was read
            rows.append(json.loads(line))
    steps = [row for row in rows if isinstance(row, dict) and "train/loss" in row]
    if not steps:
        return ""
    step, loss = steps[-1]["step"], steps[-1]["train/loss"]
    hours = statistics.median(row["time/step_s"] for row in steps) * (run.cfg.steps - step) / 3600
    return f"  step {step:,} of {run.cfg.steps:,}, loss {loss:.4f}, {hours:.1f} h left"


def show(sweep: Sweep, found: Mapping[str, Standing], given: float | None) -> None:
    """Prints a row per model, precision and method, and the totals."""
    times = step_times(sweep, found, given)
    there = {standing.state for standing in found.values()}
    states = [state for state in STATES if state in there]
    table = Table(box=None, header_style="bold")
    for name in ("model", "precision", "method", "tasks", "runs", *states, "ms/step", "hours left"):
        words = name in ("model", "precision", "method", "tasks")
        table.add_column(name, justify="left" if words else "right")
    groups: dict[Kind, list[Run]] = defaultdict(list)
    for run in sweep.runs:
        groups[run.kind].append(run)
    for kind, runs in groups.items():
        counts = Counter(found[run.run_id].state for run in runs)
        left = [r for r in runs if found[r.run_id].state not in ENDED and r.cfg.steps > 0]
        ms, mark = times.get(kind, (0.0, ""))
        hours = sum(run.cfg.steps for run in left) * ms / MS_PER_HOUR
        told = (f"{ms:.1f}{mark}", f"{hours:.1f}") if ms else ("?", "?" if left else "0")
        tasks = ", ".join(dict.fromkeys(run.cfg.task.name for run in runs))
        numbers = (str(counts[state] or "·") for state in states)
        table.add_row(*kind, tasks, str(len(runs)), *numbers, *told)
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)
    if any(mark for _, mark in times.values()):
        console.print("* the paper's time per step, on an H200; --step-ms gives another")
    done = sum(standing.state in ENDED for standing in found.values())
    print(hours_left(sweep, found, given))
    known = max(len(sweep.manifest) - len(sweep.runs), 0)
    shared = sweep.cells - len(sweep.runs) - known
    others = [f"{known} recorded"] * bool(known) + [f"{shared} the same run as another"] * bool(
        shared
    )
    note = f" ({', '.join([f'{sweep.cells} cells', *others])})" if others else ""
    print(f"{done} of {len(found)} runs done{note}: {counted(found)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    made = parser("status", __doc__)
    made.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for train.py -m")
    made.add_argument("--list", action="store_true", help="list every run")
    made.add_argument("--failed", action="store_true", help="list the failed runs")
    made.add_argument("--step-ms", type=float, help="time per step where none was measured")
    args = made.parse_args(argv)
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
    for run in sweep.runs:
        standing = found[run.run_id]
        if args.list or (args.failed and standing.state == "failed"):
            note = f"  {standing.note}" if standing.note else ""
            if standing.state == "running":
                note = progress(run) + note
            print(f"{run.run_id}  {standing.state:11}  {config.describe(run.cfg)}{note}")
    show(sweep, found, args.step_ms)
    return 0


if __name__ == "__main__":
    print_every_character()
    sys.exit(main())
