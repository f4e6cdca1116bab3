"""What there is of a sweep, what runs, what is missing, and how many hours that takes.

    zo status sweep=table1
    zo status sweep=table1 --list           every run, step and loss of those that run
    zo status sweep=table1 --failed         every failed run with the last line of its error
    zo status optimizer=bszo,mezo lr=1e-6,1e-7 task=rte --step-ms 120

A collapsed run is a result and counts as done. A live process holds a running run. A queued run waits in SLURM or in a
local process's list. `zo submit` submits interrupted and missing runs.

Hours are steps times the time per step: the median of finished runs of the same model, precision and method, else
--step-ms, else the paper's time on one H200 (marked *). Early stopping makes runs shorter. Loading and evaluation come
on top.
"""

import csv
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from launch import ROOT, parser
from launch.profile import register
from launch.records import QueueError
from launch.sweep import STATES, Run, Standing, Sweep, counted, standings
from zo import config
from zo.config import ConfigError
from zo.extras import alias
from zo.run.store import atomic

MS_PER_HOUR = 3.6e6
PAPER = ROOT / "results" / "paper" / "table4.csv"
LAST_ROWS = 200  # that a run in progress is judged by
PIPE_WIDTH = 160  # characters, where there is no terminal to ask
NAMES = ("model", "precision", "method", "tasks")


@dataclass(frozen=True)
class Kind:
    """Runs of one model, precision and method, and what those that are left cost."""

    runs: list[Run]
    left: list[Run]  # that train
    step_ms: float | None
    mark: str  # * for the paper's time

    @property
    def hours(self) -> float | None:
        """Of training that is left; None if nobody timed a step."""
        if self.step_ms is None:
            return None if self.left else 0.0
        return sum(run.cfg.steps for run in self.left) * self.step_ms / MS_PER_HOUR


def kinds(
    sweep: Sweep, found: Mapping[str, Standing], given: float | None
) -> dict[tuple[str, str, str], Kind]:
    """Returns a sweep's runs by model, precision and method; `given` milliseconds where no step was measured."""
    with PAPER.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["quantity"] == "step_ms"]
    paper = {(row["model"], row["method"]): float(row["printed"]) for row in rows}
    groups: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in sweep.runs:
        groups[run.kind].append(run)
    costs = {}
    for kind, runs in groups.items():
        left = [run for run in runs if not found[run.run_id].ended and run.cfg.steps > 0]
        times = [found[run.run_id].status.get("time/step_ms_median") for run in runs]
        measured = [ms for ms in times if ms is not None]
        own = statistics.median(measured) if measured else given
        printed = paper.get(kind[::2])
        costs[kind] = Kind(runs, left, *((printed, "*") if own is None and printed else (own, "")))
    return costs


def hours_left(
    sweep: Sweep, found: Mapping[str, Standing], given: float | None = None, local: bool = False
) -> str:
    """Returns how many runs are left and how many hours of training they take, as far as step times are known.

    `local`: what is not known is not asked for, since the runs begin now.
    """
    costs = [kind for kind in kinds(sweep, found, given).values() if kind.left]
    total = sum(kind.hours or 0 for kind in costs)
    unknown = sum(len(kind.left) for kind in costs if kind.step_ms is None)
    cost = []
    if total or not unknown:
        on_h200 = "on an H200 " * any(kind.mark for kind in costs)
        cost.append(f"{on_h200}at most {max(total, 0.1 * bool(costs)):,.1f} hours")
    if unknown and not local:
        cost.append(f"{unknown} of unknown step time (zo status --step-ms N)")
    left = sum(not standing.ended for standing in found.values())
    return f"{left} run{'s' * (left != 1)} left" + ": " * bool(cost) + " and ".join(cost)


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


def show(sweep: Sweep, found: Mapping[str, Standing], given: float | None) -> None:
    """Prints a row per model, precision and method, and the totals."""
    costs = kinds(sweep, found, given)
    there = {standing.state for standing in found.values()}
    states = [state for state in STATES if state in there]
    table = Table(box=None, header_style="bold")
    for name in (*NAMES, "runs", *states, "ms/step", "hours left"):
        table.add_column(name, justify="left" if name in NAMES else "right")
    for names, kind in costs.items():
        counts = Counter(found[run.run_id].state for run in kind.runs)
        numbers = (str(counts[state] or "·") for state in states)
        ms = "?" if kind.step_ms is None else f"{kind.step_ms:.1f}{kind.mark}"
        hours = "?" if kind.hours is None else f"{kind.hours:.1f}" if kind.step_ms else "0"
        tasks = ", ".join(dict.fromkeys(run.cfg.task.name for run in kind.runs))
        table.add_row(*names, tasks, str(len(kind.runs)), *numbers, ms, hours)
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)
    if any(kind.mark for kind in costs.values()):
        console.print("* the paper's time per step, on an H200; --step-ms gives another")
    print(hours_left(sweep, found, given))
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
    made.add_argument("--step-ms", type=float, help="time per step where none was measured")
    args = made.parse_args(argv)
    register()
    try:
        sweep = Sweep.of(args.overrides)
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
    return 0


if __name__ == "__main__":
    sys.exit(alias("status", main))
