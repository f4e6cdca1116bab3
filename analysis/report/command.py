"""The command `python -m analysis WHAT`: one subcommand per result, all with the same options for runs and results."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pandas as pd

from analysis.logs import sources
from analysis.logs.cloud import REFRESH
from analysis.logs.frames import Frames
from analysis.logs.run_file import LogError
from analysis.paper import printed_numbers
from analysis.paper.printed_numbers import TABLES, PaperError
from analysis.select import study_runs, study_sweeps, sweep_cells
from analysis.select.cell_runs import fill
from analysis.select.sweep_selection import NoRuns, Selection, select
from analysis.select.trials import of_group, of_sweep

DEFAULT_RUNS = ["out"]
RESULTS = Path("results/local")
EXAMPLES = """examples:
  python -m analysis report                             the page of everything: results/local/report.html
  python -m analysis tables                             every table and figure that the runs in out/ fill (make tables)
  python -m analysis tables quickstart --where seed=0   the tables of one sweep, printed and written
  python -m analysis paper --only 1 3                   two of the paper's tables, beside what was measured
  python -m analysis figures table4 --runs out me/zo    the figures of a sweep, from files and from W&B's cloud
"""
Work = Callable[[argparse.Namespace], Iterator[Path | str]]


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line asks for and print the paths of the files.

    Returns:
        The exit code: 2, after one sentence on stderr, if logs or printed numbers cannot be used.
    """
    arguments = _parser().parse_args(argv)
    try:
        for path in arguments.work(arguments):
            print(path)
    except (LogError, PaperError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def tables(arguments: argparse.Namespace) -> Iterator[Path]:
    """The tables of the named sweeps; without a name everything that the runs fill."""
    from analysis.report import efficiency, manifest, paper_tables
    from analysis.report.study.write import write_study

    if arguments.sweeps:
        for sweep in arguments.sweeps:
            yield from _sweep_tables(arguments, sweep)
        return
    frames = load(arguments, may_lack=True)
    paper = printed_numbers.load()
    cells, filled = paper_tables.cells_beside(TABLES, paper, frames.runs, arguments.cache)
    results = paper_tables.build(TABLES, paper, frames.runs, cells, filled)
    yield from paper_tables.write(results, filled, arguments.results / "tables")
    paper_tables.show_results(results, full=False)
    yield from manifest.write(frames, arguments.results)
    timed = fill(sweep_cells.cells(list(efficiency.SWEEPS), arguments.cache), frames.runs)
    yield from efficiency.write(timed, paper, arguments.results)
    arguments.if_any = True
    for sweep in _groups(frames):
        if not sweep.startswith(study_sweeps.PREFIX):
            yield from _sweep_tables(arguments, sweep, frames, quietly=True)
    for name in study_sweeps.names():
        found = study_runs.load(name, frames, arguments.cache)
        if found.any:
            yield from write_study(found, arguments.results / name)
    yield from _figures(arguments, frames, [])


def _sweep_tables(
    arguments: argparse.Namespace, sweep: str, frames: Frames | None = None, quietly: bool = False
) -> Iterator[Path]:
    """The tables of one sweep; quietly: none where its runs cannot stand in one table."""
    from analysis.report.sweep import write_tables

    try:
        selection = _select(arguments, sweep, frames)
        directory = arguments.results / sweep
        directory.mkdir(parents=True, exist_ok=True)
        yield from write_tables(selection, directory)
    except NoRuns:
        if not arguments.if_any:
            raise
    except LogError:
        if not quietly:
            raise


def _select(arguments: argparse.Namespace, sweep: str, frames: Frames | None) -> Selection:
    """The runs of a sweep.

    Raises:
        LogError: a source does not exist, or see `sources.load` and `select`.
    """
    try:
        sources.split([s for s in arguments.runs if not s.endswith(".parquet")])
    except LogError as error:
        raise NoRuns(f"{error}: make the runs with `python train.py -m sweep={sweep}`") from None
    places = list(map(Path, arguments.runs))
    return select(frames or load(arguments), sweep, places, arguments.where)


def paper(arguments: argparse.Namespace) -> Iterator[Path]:
    """The paper's tables, each number beside the measured one."""
    from analysis.report import paper_tables

    numbers = sorted(set(arguments.only or TABLES))
    runs = load(arguments, may_lack=True).runs
    printed = printed_numbers.load()
    cells, filled = paper_tables.cells_beside(numbers, printed, runs, arguments.cache)
    results = paper_tables.build(numbers, printed, runs, cells, filled)
    lacks = paper_tables.lacking(results)
    if arguments.strict and lacks:
        raise LogError("; ".join(lacks))
    paths = paper_tables.write(results, filled, arguments.results / "tables")
    paper_tables.show_results(results, bool(arguments.only))
    yield from paths


def figures(arguments: argparse.Namespace) -> Iterator[Path]:
    """The figures of some sweeps."""
    yield from _figures(arguments, load(arguments, may_lack=True), arguments.sweeps)


def _figures(
    arguments: argparse.Namespace, frames: Frames, sweeps: Sequence[str]
) -> Iterator[Path]:
    from analysis.report.figures import beside_paper, curves
    from analysis.report.figures.drawing import write
    from analysis.report.progress import progress

    printed = printed_numbers.load()
    history = frames.history.one
    known = sweep_cells.sweep_names()
    every = [
        name for name in dict.fromkeys([*known, *_groups(frames)]) if not study_sweeps.part_of(name)
    ]
    redraw = getattr(arguments, "redraw", False)
    for name in progress(sweeps or every, "figures"):
        if name in known and (
            sweeps or name in _groups(frames) or _any_cell(name, frames, arguments)
        ):
            cells = fill(sweep_cells.cells([name], arguments.cache), frames.runs)
            there = of_sweep(name, cells, frames.runs, history)
        else:
            there = of_group(name, frames.runs, history)
        made = [
            *(curves.sweep_figures(there) if there else []),
            *beside_paper.paper_figures(name, printed, there),
        ]
        if sweeps and not made:
            makes = f"make them with `python train.py -m sweep={name}`"
            raise LogError(f"no run of sweep {name} among the {len(frames.runs)} W&B runs: {makes}")
        for figure in made if there or sweeps else ():
            yield from write(figure, arguments.results / name, redraw)
    if not sweeps:
        single = frames.runs[frames.runs["group"] == ""].sort_values(
            "started", ascending=False, kind="stable"
        )
        for figure in curves.single_run_figure(single, history):
            yield from write(figure, arguments.results / "single_runs", redraw)


def _rank_plot(directory: Path) -> list[Path]:
    """Writes the rank plot of the paper's numbers beside their ranks."""
    from analysis.report.figures import beside_paper
    from analysis.report.figures.drawing import write

    figure = beside_paper.ranks_figure(pd.read_csv(directory / "ranks.csv"))
    return write(figure, directory, redraw=False) if figure else []


def report(arguments: argparse.Namespace) -> Iterator[Path]:
    """One page of everything."""
    from analysis.report.page import build

    frames = load(arguments, may_lack=True)
    filled = fill(sweep_cells.cells((), arguments.cache), frames.runs)
    paper_numbers = printed_numbers.load()
    material = build.Material(frames, filled, paper_numbers, printed_numbers.DIRECTORY)
    path: Path = arguments.results / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(build.report(material), encoding="utf-8", newline="\n")
    yield path


def study(arguments: argparse.Namespace) -> Iterator[Path]:
    """A study's tables, claims and figures."""
    from analysis.report.study.write import write_study

    frames = load(arguments, may_lack=True)
    for name in arguments.studies or study_sweeps.names():
        found = study_runs.load(name, frames, arguments.cache)
        if found.any:
            yield from write_study(found, arguments.results / name)
        elif arguments.studies:
            raise LogError(
                f"no run of study {name} has ended among the {len(frames.runs)} W&B runs: "
                f"make them with `python train.py -m sweep={name}`"
            )


def audit(arguments: argparse.Namespace) -> Iterator[Path]:
    """The paper's printed numbers against each other, and what they can say."""
    from analysis.report import statistics_page

    # a leaf: no code depends on it, this only starts it
    import_module("analysis.paper.audit.audit").write(arguments.paper)
    yield from statistics_page.of_paper(arguments.paper)
    yield from _rank_plot(arguments.paper)


def compare(arguments: argparse.Namespace) -> Iterator[Path]:
    """What the runs of some sweeps can say about the methods."""
    from analysis.report import statistics_page

    runs = load(arguments).runs
    yield from statistics_page.of_sweeps(
        arguments.sweeps, runs, arguments.cache, arguments.results / "tables"
    )


def efficiency(arguments: argparse.Namespace) -> Iterator[Path]:
    """Time and memory of a step, over MeZO's on the same machine."""
    from analysis.report import efficiency as page

    filled = fill(
        sweep_cells.cells(list(page.SWEEPS), arguments.cache), load(arguments, may_lack=True).runs
    )
    yield from page.write(filled, printed_numbers.load(), arguments.results)


def manifest(arguments: argparse.Namespace) -> Iterator[Path]:
    """What runs there are, and how far each sweep is filled."""
    from analysis.report import manifest as page

    frames = load(arguments, may_lack=True)
    page.show_overview(frames, arguments.sweeps, arguments.cache, arguments.strict)
    yield from page.write(frames, arguments.results)


def dashboard(arguments: argparse.Namespace) -> Iterator[Path | str]:
    """The W&B workspace and report."""
    from analysis.report import dashboard as page

    yield from page.make(
        arguments.entity,
        arguments.project,
        arguments.results / "dashboard" if arguments.dry_run else None,
    )


def load(arguments: argparse.Namespace, may_lack: bool = False) -> Frames:
    """The runs that --runs names.

    Args:
        arguments: of the command line.
        may_lack: whether there may be no runs yet: no output directory where none was named.

    Raises:
        LogError: see `analysis.logs.sources.load`.
    """
    nothing = may_lack and arguments.runs == DEFAULT_RUNS and not Path(*DEFAULT_RUNS).is_dir()
    places = [] if nothing else arguments.runs
    return sources.load(places, cache_dir=arguments.cache, refresh=arguments.refresh)


def _groups(frames: Frames) -> list[str]:
    """The sweeps that runs were logged under."""
    return sorted(set(frames.runs["group"]) - {""})


def _any_cell(name: str, frames: Frames, arguments: argparse.Namespace) -> bool:
    """Whether a run fills a cell of the sweep, under whatever name it was logged."""
    return bool(
        sweep_cells.cells([name], arguments.cache)["run_id"].isin(frames.runs["run_id"]).any()
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Tables, figures and pages from W&B logs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="WHAT", required=True)

    def add(name: str, work: Work, words: str, runs: bool = True) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
        one.set_defaults(work=work)
        if runs:
            _add_sources(one)
        one.add_argument(
            "--results",
            type=Path,
            default=RESULTS,
            metavar="DIR",
            help=f"where the files go (default: {RESULTS})",
        )
        return one

    add("report", report, "one page of every table and figure, what was run first: DIR/report.html")
    one = add("tables", tables, "the tables of some sweeps, or everything that the runs fill")
    one.add_argument(
        "sweeps", nargs="*", metavar="SWEEP", help="sweeps (default: all tables and figures)"
    )
    one.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only runs with this, as optimizer.k=2",
    )
    one.add_argument(
        "--if-any", action="store_true", help="do nothing, and do not fail, if there is no such run"
    )
    one = add(
        "figures",
        figures,
        "the figures of some sweeps: png, pdf and csv, drawn when their data change",
    )
    one.add_argument(
        "sweeps", nargs="*", metavar="SWEEP", help="sweeps (default: all that have runs)"
    )
    one.add_argument("--redraw", action="store_true", help="draw also what has not changed")
    one = add(
        "paper",
        paper,
        "the paper's tables 1 to 12, each number beside the measured one: DIR/tables/",
    )
    one.add_argument(
        "--only",
        nargs="+",
        type=int,
        choices=list(TABLES),
        metavar="N",
        help="these alone, printed in full",
    )
    one.add_argument("--strict", action="store_true", help="write nothing and fail if a run lacks")
    one = add("study", study, "a study's accuracies, ablations, claims, roundings and curves")
    one.add_argument(
        "studies",
        nargs="*",
        metavar="STUDY",
        help="sweeps that begin with study_ (default: all with runs)",
    )
    add("efficiency", efficiency, "time and memory of a step over MeZO's: DIR/table4/")
    one = add(
        "manifest",
        manifest,
        "what runs there are and how far each sweep is filled: DIR/runs.parquet, manifest.csv",
    )
    one.add_argument(
        "--sweep",
        dest="sweeps",
        nargs="+",
        default=[],
        metavar="SWEEP",
        help="of these sweeps (default: all)",
    )
    one.add_argument(
        "--strict", action="store_true", help="fail if a cell is missing, unfinished or duplicated"
    )
    one = add(
        "compare",
        compare,
        "what the runs of some sweeps say about the methods: DIR/tables/statistics.md",
    )
    one.add_argument("sweeps", nargs="+", metavar="SWEEP", help="sweeps that vary the method alone")
    one = add(
        "audit",
        audit,
        "the paper's printed numbers against each other, and what they can say",
        runs=False,
    )
    one.add_argument(
        "--paper",
        type=Path,
        default=printed_numbers.DIRECTORY,
        metavar="DIR",
        help="the printed numbers, also where the files go",
    )
    one = add("dashboard", dashboard, "the W&B workspace and report of a project", runs=False)
    one.add_argument("--entity", required=True, help="W&B user or team")
    one.add_argument("--project", required=True, help="W&B project of the runs")
    one.add_argument(
        "--dry-run", action="store_true", help="write DIR/dashboard/*.json and send nothing"
    )
    return parser


def _add_sources(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where runs are read."""
    parser.add_argument(
        "--runs",
        nargs="+",
        default=DEFAULT_RUNS,
        metavar="SOURCE",
        help="directories below which W&B run files are searched, and W&B projects as entity/project (default: out)",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=sources.CACHE,
        metavar="DIR",
        help=f"what was read is kept here, so that only changes are read again (default: {sources.CACHE})",
    )
    parser.add_argument(
        "--refresh",
        choices=REFRESH,
        default="auto",
        help="what to ask W&B's cloud again: what may have changed, all, or nothing (default: auto)",
    )
