"""The command `python -m analysis WHAT`: one subcommand per result, all with the same options for runs and results."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.logs import committed, sources
from analysis.logs.frames import Frames
from analysis.logs.progress import progress
from analysis.logs.run_file import LogError
from analysis.paper import printed_numbers
from analysis.paper.printed_numbers import TABLES, Paper
from analysis.report import comparison, paper_tables
from analysis.report.figures import beside_paper, curves
from analysis.report.figures.vega import write
from analysis.report.markdown import write_record, write_runs, write_texts
from analysis.report.sweep import write_tables
from analysis.select import sweep_cells, trials
from analysis.select.cell_runs import fill
from analysis.select.comparison import recorded, settings_file, sweeper_of, tuning_of
from analysis.select.paper_cells import SWEEPS, beside
from analysis.select.provenance import foot

DEFAULT_RUNS = ["out"]
RESULTS, MEASURED = Path("results/local"), Path("results/measured")
EXAMPLES = """examples:
  python -m analysis report                             the page of everything: results/local/report.html
  python -m analysis tables                             every table and figure that the runs in out/ fill (make tables)
  python -m analysis tables quickstart --where seed=0   tables and figures of one sweep, printed and written
  python -m analysis tables table4 --runs out me/zo     runs from files and from W&B's cloud
  python -m analysis choose compare                     the settings that tuning runs chose, for the sweep compare
  python -m analysis record compare                     keep the comparison's runs in the file that its sweep names
  python -m analysis paper --only 1 3                   two of the paper's tables, beside what was measured
"""
Paths = Iterator[Path | str]


class Call:
    """One call of the command: what was asked for, and what is read for it."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.results: Path = asked.results

    @cached_property
    def frames(self) -> Frames:
        """The runs that --runs names; none without an output directory where none was named."""
        asked = self.asked
        nothing = asked.runs == DEFAULT_RUNS and not Path(*DEFAULT_RUNS).is_dir()
        places = [*([] if nothing else asked.runs), *recorded(asked.sweeps)]
        frames = sources.load(places, cache_dir=asked.cache)
        for condition in asked.where:
            frames = trials.meeting(condition, frames)
        return frames

    @cached_property
    def known(self) -> Frames:
        """Those runs, and where none were named the committed ones of the paper's tables."""
        named = self.asked.runs != DEFAULT_RUNS or self.asked.where
        files = [] if named else sorted(MEASURED.glob("table*/runs.parquet"))
        return committed.merge([self.frames, *map(committed.read, files)])

    @cached_property
    def printed(self) -> Paper:
        """The paper's numbers."""
        return printed_numbers.load()

    def filled(self, sweeps: Sequence[str] = ()) -> pd.DataFrame:
        """The cells of some sweeps, or of all, with what their runs say."""
        return fill(sweep_cells.cells(sweeps, self.asked.cache), self.known.runs)


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line asks for and print the paths of the files.

    Returns:
        The exit code: 2, after one sentence on stderr, if logs cannot be used.
    """
    asked = _parser().parse_args(argv)
    try:
        for path in asked.work(Call(asked)):
            print(path)
    except LogError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def report(call: Call) -> Paths:
    """One page of every table and figure, what was run first: DIR/report.html."""
    from analysis.report.page import build  # slow to import, as vl_convert is

    page = build.report(build.Material(call.frames, call.known, call.filled(), call.printed))
    yield from write_texts(call.results, {"report.html": page})


def tables(call: Call) -> Paths:
    """The tables and figures of some sweeps, or everything that the runs fill."""
    asked, groups = call.asked.sweeps, sorted(call.frames.sweeps)
    if not asked:
        yield from paper(call)
        yield write_runs(call.frames.runs, call.results)
    names = asked or list(dict.fromkeys([*sweep_cells.sweep_names(), *groups]))
    for name, there in progress(list(_trials(call, names)), "tables and figures"):
        directory = call.results / name
        if there is None and asked:
            makes = f"make them with `python train.py -m sweep={name}`"
            raise LogError(f"no run of {name} among {len(call.frames.runs)} W&B runs: {makes}")
        if there and sweeper_of(name):
            yield from comparison.write_comparison(
                name, call.filled([name]), call.frames, directory
            )
            continue
        if there and (asked or name in groups):
            yield from write_tables(there, directory)
        figures = curves.sweep_figures(there) if there else []
        for figure in [*figures, *beside_paper.efficiency(name, call.printed, there)]:
            yield from write(figure, directory)
    for figure in () if asked else curves.single_run_figure(call.frames):
        yield from write(figure, call.results / "single_runs")


def choose(call: Call) -> Paths:
    """The settings of a sweep's lines that its tuning runs chose: conf/settings/SWEEP.yaml."""
    directory = sweep_cells.ROOT / "conf" / "settings"
    for sweep in call.asked.sweeps:
        cells = call.filled(tuning_of(sweep))
        runs = call.frames.runs[call.frames.runs["run_id"].isin(cells["run_id"])]
        text = settings_file(sweep, cells, call.frames, foot(f"{len(runs)} runs", runs))
        yield from write_texts(directory, {f"{sweep}.yaml": text})


def record(call: Call) -> Paths:
    """The runs of some comparisons and of their tuning, in the file that their sweeps name."""
    for sweep in call.asked.sweeps:
        name = sweeper_of(sweep).get("recorded")
        if name is None:
            raise LogError(f"sweep {sweep} names no file of recorded runs")
        known = call.filled([*tuning_of(sweep), sweep])
        yield from write_record(call.frames, known, sweep_cells.ROOT / name)


def _trials(call: Call, sweeps: Sequence[str]) -> Iterator[tuple[str, trials.Trials | None]]:
    """The runs of some sweeps; None for one without any."""
    known = sweep_cells.sweep_names()
    filled = call.filled([name for name in sweeps if name in known])
    for name in sweeps:
        yield name, trials.of_name(name, filled, call.known)


def paper(call: Call) -> Paths:
    """The paper's tables 1 to 12, each number beside the measured one: DIR/tables/."""
    numbers = sorted(set(call.asked.only or TABLES))
    filled = call.filled([sweep for number in numbers for sweep in SWEEPS.get(number, ())])
    cells = beside(call.printed, filled)
    results = list(paper_tables.build(numbers, call.printed, call.known.runs, cells, filled))
    paths = paper_tables.write(results, call.results / "tables")
    paper_tables.show_results(results, full=bool(call.asked.only))
    yield from paths


def dashboard(call: Call) -> Paths:
    """The W&B workspace of a project."""
    try:
        from analysis.report import dashboard as page  # slow to import, as W&B's library is
    except ImportError as error:
        missing = "wandb-workspaces is missing: pip install -e '.[dashboards]'"
        raise LogError(missing) from error
    directory = call.results / "dashboard" if call.asked.dry_run else None
    yield from page.make(call.asked.entity, call.asked.project, directory)


RUNS = "directories with W&B run files, projects as entity/project, .parquet files (default: out)"
KEPT = f"what was read is kept here, so that only changes are read again (default: {sources.CACHE})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Tables, figures and pages from W&B logs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(sweeps=[], only=[], where=[])
    commands = parser.add_subparsers(metavar="WHAT", required=True)

    def command(work: Callable[[Call], Paths], of_runs: bool = True) -> Callable[..., Any]:
        """Adds a subcommand; what adds an option to it."""
        words = (work.__doc__ or "").rstrip(".")
        one = commands.add_parser(
            work.__name__, help=words[0].lower() + words[1:], description=words
        )
        one.set_defaults(work=work)
        option = one.add_argument
        kept: dict[str, Any] = {"type": Path, "metavar": "DIR"}
        option("--results", default=RESULTS, help=f"where files go (default: {RESULTS})", **kept)
        if of_runs:
            option("--runs", nargs="+", default=DEFAULT_RUNS, metavar="SOURCE", help=RUNS)
            option("--cache", default=sources.CACHE, help=KEPT, **kept)
        return option

    command(report)
    option = command(tables)
    words = "sweeps (default: all tables and figures)"
    option("sweeps", nargs="*", metavar="SWEEP", help=words)
    words = "only runs with this, as optimizer.k=2"
    option("--where", action="append", default=[], metavar="KEY=VALUE", help=words)
    command(choose)("sweeps", nargs="+", metavar="SWEEP", help="sweeps that take chosen settings")
    command(record)("sweeps", nargs="+", metavar="SWEEP", help="sweeps that name such a file")
    words = "these alone, printed in full"
    command(paper)("--only", nargs="+", type=int, choices=list(TABLES), metavar="N", help=words)
    option = command(dashboard, False)
    option("--entity", required=True, help="W&B user or team")
    option("--project", required=True, help="W&B project of the runs")
    words = "write DIR/dashboard/workspace.json and send nothing"
    option("--dry-run", action="store_true", help=words)
    return parser
