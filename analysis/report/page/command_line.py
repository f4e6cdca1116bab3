"""The command that writes the page, and what is on it."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.progress import track

from analysis.logs.frames import Frames
from analysis.logs.sources import CACHE
from analysis.paper import printed_numbers
from analysis.report import command
from analysis.report.figures.command_line import history_of, sweep_drawings
from analysis.report.figures.drawing import Drawing
from analysis.report.figures.ranks import rank_plot
from analysis.report.page import coverage, headline, paper_checks, runs, studies
from analysis.report.page.content import Section, figure_markup, page
from analysis.report.page.markup import Markup, element, join, text
from analysis.report.page.measured import NO_TASK, paper_table
from analysis.report.page.tables import FILTERS, PageTable, from_text_table, table_markup
from analysis.report.paper_tables import build
from analysis.select import sweep_cells
from analysis.select.cell_runs import fill
from analysis.select.paper_cells import beside
from analysis.select.trials import NO_GROUP, Trials, of_group, of_sweep


@dataclass(frozen=True)
class Material:
    """What the page is made of.

    Attributes:
        frames: all runs.
        filled: the cells of all sweeps with what their runs say, see `analysis.select.cell_runs.fill`.
        printed: the paper's numbers.
        results: where tables are, and the page goes.
        cache: where what was read is kept.
    """

    frames: Frames
    filled: pd.DataFrame
    printed: printed_numbers.Paper
    results: Path
    cache: Path = CACHE


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and print its path.

    Returns:
        The exit code: 2, after one sentence on stderr, if the logs cannot be used.
    """
    arguments = _parser().parse_args(argv)
    return command.report(lambda: [_write(arguments)])


def _write(arguments: argparse.Namespace) -> Path:
    """Write the page; its path."""
    frames = command.load(arguments, may_lack=True)
    filled = fill(sweep_cells.cells((), arguments.cache), frames.runs)
    material = Material(frames, filled, printed_numbers.load(), arguments.results, arguments.cache)
    path: Path = arguments.results / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report(material), encoding="utf-8", newline="\n")
    return path


def report(material: Material) -> str:
    """The page as text; the same logs give the same text."""
    table = paper_table(beside(material.printed, material.filled), material.filled)
    by_sweep = coverage.counts(material.filled)
    sections = [
        _results(table),
        _tables(material),
        Section(
            "coverage",
            "What is missing",
            [
                "Every sweep is a file in conf/sweep. A run that several sweeps share is made once and counted in each."
            ],
            coverage.coverage_markup(by_sweep),
        ),
        *studies.sections(material.filled, material.frames),
        Section("figures", "Figures", _figures_lead(), join(list(_figures(material)))),
        Section("runs", "Runs and machines", (), _runs(material.frames.runs)),
        *paper_checks.sections(printed_numbers.DIRECTORY, figure_markup_of_ranks(material)),
    ]
    top = headline.headline(table, coverage.distinct(material.filled), material.frames.runs)
    return page(
        top,
        sections,
        _choices(table, material.frames.runs),
        runs.provenance(material.frames.runs),
        headline.footer(material.frames.runs),
    )


def figure_markup_of_ranks(material: Material) -> Markup:
    """The rank plot of the paper's numbers; nothing where they have not been compared."""
    path = printed_numbers.DIRECTORY / "ranks.csv"
    drawing = rank_plot(pd.read_csv(path)) if path.is_file() else None
    return Markup("") if drawing is None else figure_markup(drawing, "ranks", 0)


def _results(table: PageTable) -> Section:
    lead = [
        "What the paper prints, and what the runs of this repository say about the same cell. "
        "A dotted underline hides more: point at it, or reach it with the Tab key."
    ]
    return Section("results", "Paper and measurement", lead, table_markup(table))


def _tables(material: Material) -> Section:
    """Tables 1 to 12 in the paper's own layout, folded up."""
    results, _ = build(
        list(printed_numbers.TABLES), material.printed, material.frames.runs, material.cache
    )
    blocks = []
    for result in results:
        pages = [
            table_markup(from_text_table(table, f"table-{result.number}-{i}"))
            for i, table in enumerate(result.pages)
        ]
        words = element("small", text(result.summary))
        summary = element("summary", text(f"Table {result.number}"), words)
        blocks.append(element("details", summary, *pages, class_="sweep"))
    lead = ["Tables 1 to 12 as the paper has them, each number beside the measured one."]
    return Section("tables", "The paper's tables", lead, join(blocks))


def _figures_lead() -> list[str]:
    return [
        "Point at a line for its run and its values, or focus a panel and use the arrow keys. The same figures lie "
        "beside this page as png and pdf, each with the csv behind it, in a directory per sweep."
    ]


def _figures(material: Material) -> Iterator[Markup]:
    """A block per sweep that has something to draw: those with runs first, and open."""
    blocks = []
    for name, there in _groups(material):
        drawings = sweep_drawings(name, there, material.printed)
        if drawings:
            blocks.append((name, there, drawings))
    blocks.sort(key=lambda block: block[1] is None)
    before = 1
    for i, (name, there, drawings) in enumerate(track(blocks, "figures", transient=True)):
        yield _block(name, there, drawings, before, opened=i == 0)
        before += len(drawings)


def _groups(material: Material) -> Iterator[tuple[str, Trials | None]]:
    """Every sweep of conf/sweep, then every other W&B group."""
    frames = material.frames
    history = history_of(frames)
    names = sweep_cells.sweep_names()
    for name in names:
        cells = material.filled[material.filled["sweep"] == name]
        yield name, of_sweep(name, cells, frames.runs, history)
    groups = frames.runs["group"].replace("", NO_GROUP).unique()
    for group in sorted(set(groups) - set(names)):
        yield group, of_group(group, frames.runs, history)


def _block(
    name: str, there: Trials | None, drawings: Sequence[Drawing], before: int, opened: bool
) -> Markup:
    words = f"{len(there.table)} runs" if there else "nothing measured yet"
    figures = [
        figure_markup(drawing, f"{name}-{drawing.name}", before + i)
        for i, drawing in enumerate(drawings)
    ]
    stands = coverage.SHOWN.get(name, "runs outside any sweep" if name == NO_GROUP else "")
    summary = element("summary", text(name), element("small", text(f"{stands} · {words}")))
    return element("details", summary, *figures, class_="sweep", open=opened)


def _runs(frame: pd.DataFrame) -> Markup:
    if frame.empty:
        return element("p", text("No run has been read."), class_="lead")
    return join([table_markup(runs.devices_table(frame)), table_markup(runs.runs_table(frame))])


def _choices(table: PageTable, frame: pd.DataFrame) -> dict[str, list[str]]:
    """The values of every filter that occur on the page."""
    choices = {key: {row.facet[key] for row in table.rows if row.facet.get(key)} for key in FILTERS}
    for key in FILTERS:
        column = frame.reindex(columns=[runs.WORDS[key]])[runs.WORDS[key]]
        choices[key] |= {str(value) for value in column.dropna()}
    return {key: sorted(values - {NO_TASK}) for key, values in choices.items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.report.page",
        description="One self-contained page of every table and figure: results/report.html.",
        epilog="example: python -m analysis.report.page --runs out",
    )
    command.add_sources(parser)
    command.add_results(parser, "the page goes to DIR/report.html")
    return parser
