"""The command `python -m analysis WHAT`: one subcommand per result, all with the same options for runs and results."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.logs import sources
from analysis.logs.cloud import REFRESH
from analysis.logs.frames import Frames
from analysis.logs.progress import progress
from analysis.logs.run_file import LogError
from analysis.paper import printed_numbers
from analysis.paper.printed_numbers import TABLES, Paper, PaperError
from analysis.report import audit_page, paper_tables, statistics_page
from analysis.report.figures import beside_paper, curves
from analysis.report.figures.drawing import write
from analysis.report.markdown import write_runs, write_texts
from analysis.report.study.write import write_study
from analysis.report.sweep import write_tables
from analysis.select import study_runs, sweep_cells, trials
from analysis.select.cell_runs import fill
from analysis.select.paper_cells import SWEEPS, beside

DEFAULT_RUNS = ["out"]
RESULTS = Path("results/local")
EXAMPLES = """examples:
  python -m analysis report                             the page of everything: results/local/report.html
  python -m analysis tables                             every table and figure that the runs in out/ fill (make tables)
  python -m analysis tables quickstart --where seed=0   the tables of one sweep, printed and written
  python -m analysis paper --only 1 3                   two of the paper's tables, beside what was measured
  python -m analysis figures table4 --runs out me/zo    the figures of a sweep, from files and from W&B's cloud
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
        places = [] if nothing else asked.runs
        frames = sources.load(places, cache_dir=asked.cache, refresh=asked.refresh)
        for condition in asked.where:
            frames = trials.meeting(condition, frames)
        return frames

    @cached_property
    def printed(self) -> Paper:
        """The paper's numbers."""
        return printed_numbers.load()

    @property
    def groups(self) -> list[str]:
        """The sweeps that runs were logged under."""
        return sorted(set(self.frames.runs["group"]) - {""})

    def filled(self, sweeps: Sequence[str] = ()) -> pd.DataFrame:
        """The cells of some sweeps, or of all, with what their runs say."""
        return fill(sweep_cells.cells(sweeps, self.asked.cache), self.frames.runs)

    def lack(self, what: str, sweep: str) -> LogError:
        """That there are no such runs, and how to make them."""
        makes = f"make them with `python train.py -m sweep={sweep}`"
        return LogError(f"no run of {what} among the {len(self.frames.runs)} W&B runs: {makes}")


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line asks for and print the paths of the files.

    Returns:
        The exit code: 2, after one sentence on stderr, if logs or printed numbers cannot be used.
    """
    asked = _parser().parse_args(argv)
    try:
        for path in asked.work(Call(asked)):
            print(path)
    except (LogError, PaperError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def report(call: Call) -> Paths:
    """One page of every table and figure, what was run first: DIR/report.html."""
    from analysis.report.page import build  # slow to import, as vl_convert is

    page = build.report(build.Material(call.frames, call.filled(), call.printed))
    yield from write_texts(call.results, {"report.html": page})


def tables(call: Call) -> Paths:
    """The tables and figures of some sweeps, or everything that the runs fill."""
    asked = call.asked
    if not asked.sweeps:
        yield from paper(call)
        yield write_runs(call.frames.runs, call.results)
        yield from study(call)
    others = [name for name in call.groups if not name.startswith(study_runs.PREFIX)]
    for sweep, there in _trials(call, asked.sweeps or others):
        if sweep in study_runs.names():
            raise LogError(f"`python -m analysis study {sweep}` makes the tables of a study")
        if there:
            yield from write_tables(there, call.results / sweep, asked.where)
        elif asked.sweeps:
            raise call.lack(f"sweep {sweep}", sweep)
    yield from figures(call)


def _trials(call: Call, sweeps: Sequence[str]) -> Iterator[tuple[str, trials.Trials | None]]:
    """The runs of some sweeps; None for one without any."""
    known = sweep_cells.sweep_names()
    filled = call.filled([name for name in sweeps if name in known])
    for name in sweeps:
        yield name, trials.of_name(name, filled, call.frames)


def paper(call: Call) -> Paths:
    """The paper's tables 1 to 12, each number beside the measured one: DIR/tables/."""
    numbers = sorted(set(call.asked.only or TABLES))
    filled = call.filled([sweep for number in numbers for sweep in SWEEPS.get(number, ())])
    cells = beside(call.printed, filled)
    results = list(paper_tables.build(numbers, call.printed, call.frames.runs, cells, filled))
    paths = paper_tables.write(results, filled, call.results / "tables")
    paper_tables.show_results(results, full=bool(call.asked.only))
    yield from paths


def figures(call: Call) -> Paths:
    """The figures of some sweeps: png, pdf and csv, drawn when their data change."""
    sweeps = call.asked.sweeps
    every = dict.fromkeys([*sweep_cells.sweep_names(), *call.groups])
    names = sweeps or [name for name in every if not study_runs.part_of(name)]
    for name, there in progress(list(_trials(call, names)), "figures"):
        if there is None and not sweeps:
            continue
        made = curves.sweep_figures(there) if there else []
        made += beside_paper.paper_figures(name, call.printed, there)
        if not made and sweeps:
            raise call.lack(f"sweep {name}", name)
        for figure in made:
            yield from write(figure, call.results / name)
    for figure in () if sweeps else curves.single_run_figure(call.frames):
        yield from write(figure, call.results / "single_runs")


def study(call: Call) -> Paths:
    """A study's accuracies, ablations, claims and curves."""
    for name in call.asked.studies or study_runs.names():
        filled = call.filled(study_runs.sweeps(name))
        found = study_runs.of_filled(name, filled, call.frames)
        if found.any:
            yield from write_study(found, call.results / name)
        elif call.asked.studies:
            raise call.lack(f"study {name} has ended", name)


def audit(call: Call) -> Paths:
    """The paper's printed numbers against each other, and what they can say."""
    directory = call.asked.paper
    yield from audit_page.write(directory)
    yield from statistics_page.write(directory)
    ranks = pd.read_csv(directory / "ranks.csv")
    yield from write(beside_paper.ranks_figure(ranks), directory)


def dashboard(call: Call) -> Paths:
    """The W&B workspace and report of a project."""
    try:
        from analysis.report import dashboard as page  # slow to import, as W&B's library is
    except ImportError as error:
        missing = "wandb-workspaces is missing: pip install -e '.[dashboards]'"
        raise LogError(missing) from error
    directory = call.results / "dashboard" if call.asked.dry_run else None
    yield from page.make(call.asked.entity, call.asked.project, directory)


RUNS = "directories with W&B run files, projects as entity/project, .parquet files (default: out)"
KEPT = f"what was read is kept here, so that only changes are read again (default: {sources.CACHE})"
AGAIN = "what to ask W&B's cloud again: what may have changed, all, or nothing (default: auto)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Tables, figures and pages from W&B logs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(sweeps=[], studies=[], only=[], where=[])
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
            option("--refresh", choices=REFRESH, default="auto", help=AGAIN)
        return option

    command(report)
    option = command(tables)
    several: dict[str, Any] = {"nargs": "*", "metavar": "SWEEP"}
    option("sweeps", help="sweeps (default: all tables and figures)", **several)
    words = "only runs with this, as optimizer.k=2"
    option("--where", action="append", default=[], metavar="KEY=VALUE", help=words)
    command(figures)("sweeps", help="sweeps (default: all that have runs)", **several)
    words = "these alone, printed in full"
    command(paper)("--only", nargs="+", type=int, choices=list(TABLES), metavar="N", help=words)
    words = "sweeps study_... (default: all with runs)"
    command(study)("studies", nargs="*", metavar="STUDY", help=words)
    words, printed = "the printed numbers, also where the files go", printed_numbers.DIRECTORY
    command(audit, False)("--paper", type=Path, default=printed, metavar="DIR", help=words)
    option = command(dashboard, False)
    option("--entity", required=True, help="W&B user or team")
    option("--project", required=True, help="W&B project of the runs")
    words = "write DIR/dashboard/*.json and send nothing"
    option("--dry-run", action="store_true", help=words)
    return parser
