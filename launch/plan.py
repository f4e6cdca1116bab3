"""What a sweep consists of: its runs, which of them are finished, and how many hours the others take at most.

    python -m launch.plan sweep=table3_opt_13b
    python -m launch.plan sweep=table1 --list
    python -m launch.plan optimizer=bszo,mezo lr=1e-6,1e-7 task=rte --step-ms 120

Hours are steps times the time per step: measured by finished runs of the same model, precision and method in the
output directory, else given with --step-ms, else from the paper's Table 4 (one H200). Early stopping makes runs
shorter; loading and evaluation come on top.
"""

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from launch.sweep import ENDED, Run, Sweep
from zo import config
from zo.config import ConfigError
from zo.run.tracking import read_status

MS_PER_HOUR = 3.6e6
PIPE_WIDTH = 120  # characters, where there is no terminal to ask
Kind = tuple[str, str, str]  # model, precision, method


@dataclass(frozen=True)
class Planned:
    """One run of a plan.

    Attributes:
        run: The run.
        status: finished, collapsed, failed, interrupted, running or, if it was never started, missing.
        step_ms: What its status says it measured, if it is finished.
    """

    run: Run
    status: str
    step_ms: float | None


def plan(sweep: Sweep) -> list[Planned]:
    """Returns what the runs' directories say of them."""
    planned = []
    for run in sweep.runs:
        status = read_status(run.directory)
        name, step_ms = status.get("run/status", "missing"), status.get("time/step_ms_median")
        planned.append(Planned(run, name, step_ms))
    return planned


def step_times(runs: Iterable[Planned], given: float | None) -> dict[Kind, float]:
    """Returns the milliseconds per step of every kind of run for which they are known."""
    measured = defaultdict(list)
    kinds = set()
    for planned in runs:
        kinds.add(planned.run.kind)
        if planned.step_ms is not None:
            measured[planned.run.kind].append(planned.step_ms)
    paper = yaml.safe_load(Path(__file__).with_name("step_times.yaml").read_text())
    times: dict[Kind, float] = {}
    for kind in kinds:
        model, _, method = kind
        if measured[kind]:
            times[kind] = statistics.median(measured[kind])
        elif given is not None:
            times[kind] = given
        elif method in paper.get(model, {}):
            times[kind] = paper[model][method]
        elif method == "bszo_b" and model in paper:
            times[kind] = paper[model]["bszo"] * 4 / 3  # 4 forward passes for 3
    return times


def show(runs: list[Planned], cell_count: int, times: dict[Kind, float]) -> None:
    """Prints a row per model, precision and method, and the number of runs as the last line."""
    table = Table(box=None, header_style="bold")
    for name in ("model", "precision", "method", "tasks"):
        table.add_column(name)
    for name in ("runs", "done", "ms/step", "hours left, at most"):
        table.add_column(name, justify="right")
    groups: dict[Kind, list[Planned]] = defaultdict(list)
    for planned in runs:
        groups[planned.run.kind].append(planned)
    total, unknown = 0.0, 0
    for kind, members in groups.items():
        left = [p.run for p in members if p.status not in ENDED and p.run.cfg.steps > 0]
        done = sum(p.status in ENDED for p in members)
        tasks = ", ".join(dict.fromkeys(p.run.cfg.task.name for p in members))
        counts = (str(len(members)), str(done))
        if kind in times or not left:
            hours = sum(run.cfg.steps for run in left) * times.get(kind, 0.0) / MS_PER_HOUR
            total += hours
            table.add_row(*kind, tasks, *counts, f"{times.get(kind, 0):.1f}", f"{hours:.1f}")
        else:
            unknown += len(left)
            table.add_row(*kind, tasks, *counts, "?", "?")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)
    done = sum(planned.status in ENDED for planned in runs)
    cost = [f"at most {total:,.1f} GPU hours"] if total or not unknown else []
    cost += [f"{unknown} of unknown step time (give --step-ms)"] if unknown else []
    console.print(f"{done} finished, {len(runs) - done} to run: {', and '.join(cost)}")
    shared = cell_count - len(runs)
    note = f" ({cell_count} cells, {shared} are the same run as another)" if shared else ""
    console.print(f"{len(runs)} runs{note}")


def list_runs(runs: Iterable[Planned]) -> None:
    """Prints a line per run: id, status, choices."""
    for planned in runs:
        run = planned.run
        print(f"{run.run_id}  {planned.status:11}  {config.describe(run.cfg)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    parser = argparse.ArgumentParser(
        "python -m launch.plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="as for train.py -m")
    parser.add_argument("--list", action="store_true", help="list every run with its id and status")
    parser.add_argument("--step-ms", type=float, help="time per step where none was measured")
    args = parser.parse_args(argv)
    config.register()
    try:
        sweep = Sweep.of(args.overrides)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    runs = plan(sweep)
    if args.list:
        list_runs(runs)
    show(runs, sweep.cells, step_times(runs, args.step_ms))
    return 0


if __name__ == "__main__":
    sys.exit(main())
