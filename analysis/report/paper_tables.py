"""Tables 1 to 12 of the paper, rebuilt from runs and from conf/, each number beside the printed one.

    python -m analysis.report.paper_tables   a line per table, and csv, md and tex of each in results/tables
    python -m analysis.report.paper_tables --only 1 3         these alone, in full
    python -m analysis.report.paper_tables --strict           fails if a run lacks, and says which command makes it

Tables 1, 3, 4, 5, 11 and 12 come from the runs of conf/sweep, Table 2 from what runs logged of their optimizer's
state, Table 6 from conf/ and from what runs logged, Tables 7 to 10 from conf/. A csv has a row per number, unrounded;
md and tex have the page; all.tex is a document of all tables.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.text import Text

from analysis.logs.run_file import LogError
from analysis.paper.printed_numbers import TABLES, Paper, load
from analysis.report import command, paper_settings
from analysis.report.paper_layout import TITLES, Page
from analysis.report.style import look
from analysis.report.text_table import TextTable, latex, latex_text, markdown, show
from analysis.select import cell_runs, sweep_cells
from analysis.select.cell_runs import fill, shortfall
from analysis.select.paper_cells import FAILED, SWEEPS, beside

PIPE_WIDTH = 150  # characters, where there is no terminal to ask
HYPERPARAMETERS = range(7, 11)
DOCUMENT = r"""\documentclass{article}
\usepackage[a3paper,margin=15mm]{geometry}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage{booktabs}
\begin{document}
%s
\end{document}
"""


@dataclass(frozen=True)
class Result:
    """One of the paper's tables.

    Attributes:
        number: of the table.
        pages: its parts.
        frame: its numbers.
        summary: how much of it there is, in words.
        lacks: a sentence per sweep of which runs lack.
    """

    number: int
    pages: list[TextTable]
    frame: pd.DataFrame
    summary: str
    lacks: list[str]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see the module.

    Returns:
        The exit code: 2, after one sentence on stderr, if something cannot be used, or lacks under --strict.
    """
    arguments = _parser().parse_args(argv)
    return command.report(lambda: _work(arguments))


def _work(arguments: argparse.Namespace) -> list[Path]:
    """Write and print the tables that were asked for; the page of all of them.

    Raises:
        LogError: something cannot be used, or lacks under --strict.
    """
    numbers = sorted(set(arguments.only or TABLES))
    runs = command.load(arguments, may_lack=True).runs
    results, filled = build(numbers, load(), runs, arguments.cache)
    lacks = list(dict.fromkeys(line for result in results for line in result.lacks))
    if arguments.strict and lacks:
        raise LogError("; ".join(lacks))
    directory = arguments.results / "tables"
    directory.mkdir(parents=True, exist_ok=True)
    for result in results:
        _write(result, directory, filled)
    _write_document(directory)
    _show(results, bool(arguments.only))
    return [directory / "table*.{csv,md,tex}", directory / "all.tex"]


def build(
    numbers: Sequence[int], paper: Paper, runs: pd.DataFrame, cache: Path | None
) -> tuple[list[Result], pd.DataFrame]:
    """The tables, and the cells behind them.

    Args:
        numbers: which tables, 1 to 12.
        paper: the printed numbers.
        runs: the runs frame, see `analysis.logs.frames`.
        cache: where the expected cells are kept, see `analysis.select.sweep_cells.cells`.

    Raises:
        LogError: see `analysis.select.sweep_cells.cells` and `analysis.select.cell_runs.fill`.
        PaperError: a file of conf/ is missing.
    """
    names = list(dict.fromkeys(name for number in numbers for name in SWEEPS.get(number, ())))
    asked = (
        sweep_cells.cells(names, cache)
        if names
        else pd.DataFrame(columns=list(sweep_cells.COLUMNS))
    )
    filled = fill(asked, runs)
    frame = beside(paper, filled) if names else pd.DataFrame()
    conf = paper_settings.settings(paper)
    results = []
    for number in numbers:
        if number in SWEEPS:
            results.append(_from_runs(number, frame, filled))
        elif number == 2:
            results.append(_memory(paper, runs))
        elif number == 6:
            results.append(_splits(paper, runs))
        else:
            results.append(_hyperparameters(number, conf))
    return results, filled


def _from_runs(number: int, frame: pd.DataFrame, filled: pd.DataFrame) -> Result:
    mine: Any = filled[filled["sweep"].isin(SWEEPS[number])]
    lacks = {sweep: shortfall(mine[mine["sweep"] == sweep]) for sweep in SWEEPS[number]}
    pages = Page(number, frame, {sweep: " ".join(said) for sweep, said in lacks.items()}).tables()
    for page in pages:
        page.caption += [line for line in [_provenance(mine)] if line]
    rows: Any = frame[(frame["table"] == number) & (frame["here"] != "nowhere")]
    measured = int(rows["here"].isin(FAILED).sum())
    counts = mine["status"].value_counts()
    ended = int(counts.get("finished", 0) + counts.get("collapsed", 0))
    summary = f"{measured} of {len(rows)} numbers from {ended} of {len(mine)} runs"
    return Result(
        number,
        pages,
        frame[frame["table"] == number],
        summary,
        [s for said in lacks.values() for s in said],
    )


def _memory(paper: Paper, runs: pd.DataFrame) -> Result:
    frame = paper_settings.state(paper, runs)
    page = paper_settings.state_table(frame, cell_runs.command("table4"))
    without = [look(method).label for method in frame[frame["runs"] == 0]["method"]]
    count = frame["method"].nunique()
    summary = f"{count - len(without)} of {count} methods measured, from {frame['runs'].sum()} runs"
    said = f"no finished run has logged the state of {', '.join(without)}: `{cell_runs.command('table4')}` makes them"
    return Result(2, [page], frame, summary, [said] if without else [])


def _splits(paper: Paper, runs: pd.DataFrame) -> Result:
    frame = paper_settings.splits(paper, runs)
    printed = frame[frame["printed"] != ""]
    same = int((printed["difference"] == 0).sum())
    seen = int(frame[frame["run_count"] > 0]["task"].nunique())
    summary = f"{same} of {len(printed)} sizes as printed; {seen} of {frame['task'].nunique()} tasks have runs"
    return Result(6, [paper_settings.splits_table(frame)], frame, summary, [])


def _hyperparameters(number: int, conf: Any) -> Result:
    frame = conf[conf["table"] == number]
    same = int((frame["difference"].abs() <= 1e-12).sum())
    page = paper_settings.settings_table(number, frame)
    return Result(number, [page], frame, f"{same} of {len(frame)} numbers of conf/ as printed", [])


def _provenance(filled: Any) -> str:
    """What wrote the runs behind a table; empty without runs."""
    there = filled[filled["status"].isin(FAILED)]
    if there.empty:
        return ""
    revisions = sorted({str(revision)[:10] for revision in there["git_revision"].dropna()})
    devices = sorted({str(device) for device in there["device"].dropna()})
    days = sorted({str(day)[:10] for day in there["started"].dropna()})
    return (
        f"From {there['run_id'].nunique()} runs; git {', '.join(revisions) or 'unknown'}; "
        f"on {', '.join(devices) or 'unknown'}; {' to '.join(dict.fromkeys(days[:1] + days[-1:]))}."
    )


def _write(result: Result, directory: Path, filled: pd.DataFrame) -> None:
    stem = directory / f"table{result.number}"
    result.frame.to_csv(stem.with_suffix(".csv"), index=False, lineterminator="\n")
    for ending, render in ((".md", markdown), (".tex", latex)):
        text = "\n".join(render(page) for page in result.pages)
        stem.with_suffix(ending).write_text(text, encoding="utf-8", newline="\n")
    if result.number in SWEEPS:
        grid: Any = filled[filled["sweep"].isin(SWEEPS[result.number])]
        columns = [
            "sweep",
            "run_id",
            "model",
            "task",
            "optimizer",
            "precision",
            "variant",
            "seed",
            "lr",
        ]
        columns += [
            "status",
            "val_accuracy",
            "test_accuracy",
            "best_step",
            "collapse_step",
            "command",
        ]
        grid[columns].to_csv(stem.with_suffix(".runs.csv"), index=False, lineterminator="\n")


def _write_document(directory: Path) -> None:
    """all.tex: every table that there is, one per page."""
    inputs = [
        f"\\section*{{Table {number}. {latex_text(TITLES[number])}}}\n\\noindent\\input{{table{number}.tex}}\\clearpage"
        for number in TABLES
        if (directory / f"table{number}.tex").exists()
    ]
    (directory / "all.tex").write_text(DOCUMENT % "\n".join(inputs), encoding="utf-8", newline="\n")


def _show(results: Sequence[Result], full: bool) -> None:
    """A line per table; the tables themselves if they were asked for."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    for result in results:
        for page in result.pages if full else []:
            show(page, console)
    console.print()
    for result in results:
        console.print(
            Text(f"Table {result.number:2d}  {result.summary}  ({TITLES[result.number]})")
        )
    lacks = list(dict.fromkeys(line for result in results for line in result.lacks))
    for line in lacks:
        console.print(Text(f"  {line}", style="dim"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.report.paper_tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        nargs="+",
        type=int,
        choices=list(TABLES),
        metavar="N",
        help="these tables alone, printed in full (1 to 12)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="write nothing and fail if a run of a table is missing, unfinished or duplicated",
    )
    command.add_sources(parser)
    command.add_results(parser, "the tables go to DIR/tables/")
    return parser


if __name__ == "__main__":
    sys.exit(main())
