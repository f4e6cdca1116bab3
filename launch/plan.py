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

from zo import cells, config
from zo.config import ConfigError, RunConfig
from zo.identity import run_id
from zo.tracking import read_status

ENDED = ("finished", "collapsed")  # a collapsed run is a result: it counts as *
MS_PER_HOUR = 3.6e6
PIPE_WIDTH = 120  # characters, where there is no terminal to ask
Kind = tuple[str, str, str]  # model, precision, method


@dataclass(frozen=True)
class Planned:
    """One run of a plan.

    Attributes:
        run_id: Its id, the name of its directory.
        cfg: Its configuration.
        status: finished, collapsed, failed, running or, if it was never started, missing.
        step_ms: What its status says it measured, if it is finished.
    """

    run_id: str
    cfg: RunConfig
    status: str
    step_ms: float | None

    @property
    def kind(self) -> Kind:
        """What its time per step depends on."""
        return self.cfg.model.name, self.cfg.precision.name, self.cfg.optimizer.name


def plan(overrides: Sequence[str]) -> tuple[list[Planned], int]:
    """Returns the different runs that the overrides ask for, in order, and the number of cells they fill.

    Raises:
        ConfigError: If one of them could not be run.
    """
    configs = cells.runs(overrides, multirun=True)
    planned: dict[str, Planned] = {}
    for cfg in configs:
        name = run_id(cfg.optimizer.name, config.scientific(cfg))
        status = read_status(Path(cfg.out) / name)
        planned[name] = Planned(
            name, cfg, status.get("run/status", "missing"), status.get("time/step_ms_median")
        )
    return list(planned.values()), len(configs)


def step_times(runs: Iterable[Planned], given: float | None) -> dict[Kind, float]:
    """Returns the milliseconds per step of every kind of run for which they are known."""
    measured = defaultdict(list)
    kinds = set()
    for run in runs:
        kinds.add(run.kind)
        if run.step_ms is not None:
            measured[run.kind].append(run.step_ms)
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
    for run in runs:
        groups[run.kind].append(run)
    total, unknown = 0.0, 0
    for kind, members in groups.items():
        left = [run for run in members if run.status not in ENDED and run.cfg.steps > 0]
        done = sum(run.status in ENDED for run in members)
        tasks = ", ".join(dict.fromkeys(run.cfg.task.name for run in members))
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
    done = sum(run.status in ENDED for run in runs)
    cost = [f"at most {total:,.1f} GPU hours"] if total or not unknown else []
    cost += [f"{unknown} of unknown step time (give --step-ms)"] if unknown else []
    console.print(f"{done} finished, {len(runs) - done} to run: {', and '.join(cost)}")
    shared = cell_count - len(runs)
    note = f" ({cell_count} cells, {shared} are the same run as another)" if shared else ""
    console.print(f"{len(runs)} runs{note}")


def list_runs(runs: Iterable[Planned]) -> None:
    """Prints a line per run: id, status, choices."""
    for run in runs:
        print(f"{run.run_id}  {run.status:9}  {config.describe(run.cfg)}")


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
        runs, cell_count = plan(args.overrides)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if args.list:
        list_runs(runs)
    show(runs, cell_count, step_times(runs, args.step_ms))
    return 0


if __name__ == "__main__":
    sys.exit(main())
