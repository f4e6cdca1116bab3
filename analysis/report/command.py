"""The commands `zo tables`, `choose`, `record`, `paper`, `report`, `dashboard`: the same options for runs, results."""

import argparse
import difflib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.logs import committed, sources
from analysis.logs.frames import Frames
from analysis.logs.run_file import LogError
from analysis.paper import printed_numbers
from analysis.paper.printed_numbers import TABLES
from analysis.report import comparison, paper_tables
from analysis.report.figures import beside_paper, curves
from analysis.report.figures.drawing import write
from analysis.report.markdown import write_record, write_runs, write_texts
from analysis.report.sweep import write_tables
from analysis.select.cells import ROOT, fill, notes, typed
from analysis.select.comparison import settings_file
from analysis.select.paper_cells import BEHIND, SWEEPS
from analysis.select.provenance import foot
from zo.extras import progress

DEFAULT_RUNS = ["out"]
RESULTS, MEASURED = Path("results/local"), ROOT / "results" / "measured"
FEW = 6  # paths that are printed one by one
EXAMPLES = """examples:
  zo report                             the page of everything: results/local/report.html
  zo tables                             every table and figure that the runs in out/ fill (make tables)
  zo tables quickstart --where seed=0   tables and figures of one sweep, printed and written
  zo tables table4 --runs out me/zo     runs from files and from W&B's cloud
  zo choose compare --of compare_tune   the settings that these tuning runs chose for sweep=compare
  zo record results/measured/mine compare_tune compare     keep a comparison's runs
  zo paper --only 1 3                   two of the paper's tables, beside what was measured
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
        frames = sources.load([] if nothing else asked.runs, asked.cache)
        for condition in asked.where:
            frames = _meeting(condition, frames)
        return frames

    @cached_property
    def known(self) -> Frames:
        """Those runs, and where none were named the committed ones of the paper's tables and of these sweeps."""
        named = self.asked.runs != DEFAULT_RUNS or self.asked.where
        files = [] if named else sorted(MEASURED.glob("*/runs.parquet"))
        own = [*self.asked.sweeps, *self.asked.of] or self.frames.sweeps
        wanted = {*own, *BEHIND}
        behind = {path: {line["sweep"] for line in committed.lines(path)} for path in files}
        mine = [path for path, sweeps in behind.items() if wanted & sweeps]
        return committed.merge([self.frames, *map(committed.read, mine)])

    def filled(self, sweeps: Sequence[str] = ()) -> pd.DataFrame:
        """The cells of some sweeps, or of all, with what their runs say."""
        return fill(self.known.cells_of(sweeps), self.known.runs)

    def filled_of_each(self, sweeps: Sequence[str]) -> pd.DataFrame:
        """The cells of these sweeps, of which each has some."""
        cells = self.filled(sweeps)
        if missing := [sweep for sweep in sweeps if sweep not in set(cells["sweep"])]:
            raise LogError(_no_runs(missing[0], self.known))
        return cells


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line asks for and print where its files are; the exit code, 2 if logs cannot be used."""
    asked = _parser().parse_args(argv)
    try:
        print(*summary([*asked.work(Call(asked))]), sep="\n")
    except (LogError, OSError) as error:
        file = getattr(error, "filename", None)
        said = f"{file}: {getattr(error, 'strerror', '')}" if file else error
        print(f"error: {said}", file=sys.stderr)
        return 2
    return 0


def _meeting(condition: str, frames: Frames) -> Frames:
    """The frames with the runs that meet one `key=value` condition; numbers compare as numbers."""
    key, separator, text = condition.partition("=")
    if not separator or key not in frames.runs.columns:
        raise LogError(f"--where {condition}: wanted is key=value, with a configuration key")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    runs = frames.runs
    met = [bool(cell == value) or str(cell) == text for cell in runs[key]]
    if value is None:
        met = [key in str(nulls).split() for nulls in runs.get("nulls", [""] * len(runs))]
    return replace(frames, runs=frames.runs[met])


def summary(paths: Sequence[Path | str]) -> list[str]:
    """A few paths; of many their folder, the figure to look at first, and what makes one page of all."""
    if len(paths) <= FEW:
        return [str(path) for path in paths]
    folder = os.path.commonpath(paths)
    figures = [str(path) for path in paths if Path(path).suffix == ".png"]
    first = [f"The first of {len(figures)} figures: {figures[0]}"] * bool(figures)
    files = f"{len(paths)} files are in {folder}."
    return [files, *first[:1], "All of it on one page: make report"]


def report(call: Call) -> Paths:
    """One page of every table and figure, what was run first: DIR/report.html."""
    from analysis.report.page import build  # slow to import, as vl_convert is

    material = build.Material(call.frames, call.known, call.filled(), printed_numbers.load())
    page = build.report(material)
    yield from write_texts(call.results, {"report.html": page})


def tables(call: Call) -> Paths:
    """The tables and figures of some sweeps, or of all that have runs, with the paper's tables that these fill."""
    asked, groups = call.asked.sweeps, call.frames.sweeps
    names = asked or sorted(groups)
    if not asked and call.frames.runs.empty:
        raise LogError(f"{' '.join(call.asked.runs)}: no runs in it; --runs names others")
    filled = call.filled()
    failed: list[str] = []  # a sweep that cannot be shown leaves the others as they are
    shown = False
    for name in progress(names, "tables and figures"):
        try:
            for path in _sweep(call, name, filled):
                shown = True
                yield path
        except LogError as error:
            failed.append(str(error))
    if failed and not shown:
        raise LogError("; ".join(failed))
    if failed:
        print("not shown: " + "; ".join(failed), file=sys.stderr)
    if numbers := [number for number, sweeps in SWEEPS.items() if {*sweeps} & {*names}]:
        yield from _paper(call, numbers, full=False)
    if not asked:
        yield write_runs(call.frames.runs, call.results)
        for figure in curves.single_run_figure(call.frames):
            yield from write(figure, call.results / "single_runs")


def _sweep(call: Call, name: str, filled: pd.DataFrame) -> Paths:
    """The tables and figures of one sweep."""
    cells, directory = filled[filled["sweep"] == name], call.results / name
    if cells.empty or call.known.of(name).empty:
        raise LogError(_no_runs(name, call.known))
    if (cells["line"] != "").any():
        yield from comparison.write_comparison(name, filled, call.known, directory)
        return
    yield from write_tables(cells, call.known, directory)
    figures = [*curves.sweep_figures(cells, call.known.history), *beside_paper.efficiency(cells)]
    for figure in figures:
        said = [*figure.notes, *notes(cells, call.known)]
        yield from write(replace(figure, notes=said), directory)


def _no_runs(sweep: str, frames: Frames) -> str:
    there = ", ".join(frames.sweeps) or "no sweep"
    words, file = typed(sweep)
    known = {*frames.sweeps, *(path.stem for path in (ROOT / "conf" / "sweep").glob("*.yaml"))}
    near = [] if file else difflib.get_close_matches(sweep, sorted(known - {sweep}), n=1)
    sweep += "".join(f" (did you mean {name}?)" for name in near)
    makes = f"`zo train -m {words}` makes those of conf/sweep/{file}.yaml"
    return f"there is no run of {sweep}; there are runs of {there}" + f". {makes}" * bool(file)


def choose(call: Call) -> Paths:
    """The settings of a sweep's lines that its tuning runs chose: results/settings/SWEEP.csv."""
    (sweep,), asked = call.asked.sweeps, call.asked
    if asked.best < 1:
        raise LogError("--best must be at least 1")
    cells = call.filled_of_each(asked.of)
    runs = call.known.runs[call.known.runs["run_id"].isin(cells["run_id"])]
    said = foot(f"{len(runs)} runs", runs)
    text = settings_file(sweep, cells, call.known, said, asked.best)
    yield from write_texts(comparison.SETTINGS, {f"{sweep}.csv": text})


def record(call: Call) -> Paths:
    """The ended runs of some sweeps, as files to be committed: DIRECTORY/runs.parquet and what lies beside it."""
    call.filled_of_each(call.asked.sweeps)
    yield from write_record(call.known, call.asked.sweeps, call.asked.directory)


def paper(call: Call) -> Paths:
    """The paper's tables 1 to 12, each number beside the measured one: DIR/tables/."""
    yield from _paper(call, sorted(set(call.asked.only or TABLES)), full=bool(call.asked.only))


def _paper(call: Call, numbers: Sequence[int], full: bool) -> Paths:
    filled = call.filled([sweep for number in numbers for sweep in SWEEPS.get(number, ())])
    results = list(paper_tables.build(numbers, printed_numbers.load(), call.known.runs, filled))
    paths = paper_tables.write(results, call.results / "tables")
    paper_tables.show_results(results, full)
    yield from paths


def dashboard(call: Call) -> Paths:
    """The W&B workspace of a project."""
    try:
        from analysis.report import dashboard as page  # slow to import, as W&B's library is
    except ModuleNotFoundError as error:
        missing = "wandb-workspaces is missing: pip install -e '.[dashboards]'"
        raise LogError(missing) from error
    except ImportError as error:
        raise LogError(f"wandb-workspaces cannot be imported: {error}") from error
    directory = call.results / "dashboard" if call.asked.dry_run else None
    yield from page.make(call.asked.entity, call.asked.project, directory)


RUNS = "directories with W&B run files, projects as entity/project, .parquet files (default: out)"
KEPT = f"what was read is kept here, so that only changes are read again (default: {sources.CACHE})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="zo",
        description="Tables, figures and pages from W&B logs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(sweeps=[], of=[], only=[], where=[])
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
    option = command(choose)
    option("sweeps", nargs=1, metavar="SWEEP", help="sweep that takes the chosen settings")
    option("--of", nargs="+", required=True, metavar="SWEEP", help="sweeps of tuning runs")
    option("--best", type=int, default=1, metavar="N", help="settings of each line (default: 1)")
    option = command(record)
    option("directory", type=Path, metavar="DIRECTORY", help="as results/measured/mine")
    option("sweeps", nargs="+", metavar="SWEEP", help="a comparison and its tuning sweeps")
    words = "these alone, printed in full"
    command(paper)("--only", nargs="+", type=int, choices=list(TABLES), metavar="N", help=words)
    option = command(dashboard, False)
    option("--entity", required=True, help="W&B user or team")
    option("--project", required=True, help="W&B project of the runs")
    words = "write DIR/dashboard/workspace.json and send nothing"
    option("--dry-run", action="store_true", help=words)
    return parser
