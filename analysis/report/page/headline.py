"""The page's top and foot: in a few numbers, what has been measured here and what has not."""

from collections.abc import Mapping

import pandas as pd

from analysis.report.page.markup import Markup, code_spans, element, join, text
from analysis.report.page.measured import MEASURED
from analysis.report.page.tables import PageTable, bar

REPOSITORY_WORDS = "Made by `python -m analysis.report.page` from W&B run files and results/paper."


def headline(table: PageTable, cells: Mapping[str, int], runs: pd.DataFrame) -> Markup:
    """The heading, a sentence, and four numbers.

    Args:
        table: of the paper's cells, see `measured.paper_table`.
        cells: status -> number of the paper's runs, see `coverage.distinct`.
        runs: the runs frame.
    """
    numbers = len(table.rows)
    known = sum(row.cells[MEASURED].kind == "measured" for row in table.rows)
    finished = int((runs["status"] == "finished").sum())
    collapsed = int((runs["status"] == "collapsed").sum())
    title = _title(known, numbers)
    tiles = [
        _tile(
            "The paper's printed cells",
            f"{known}",
            f"of {numbers} measured here",
            bar(known, 0, numbers, f"{known} of {numbers}"),
        ),
        _tile(
            "The runs behind them",
            f"{cells.get('finished', 0):,}",
            f"of {cells['all']:,} finished",
            bar(
                cells.get("finished", 0),
                cells.get("collapsed", 0),
                cells["all"],
                f"{cells.get('finished', 0)} of {cells['all']} finished, {cells.get('collapsed', 0)} collapsed",
            ),
        ),
        _tile(
            "Runs read for this page",
            f"{len(runs):,}",
            "in all",
            text(
                f"{finished} finished, {collapsed} collapsed, {len(runs) - finished - collapsed} interrupted"
            ),
        ),
        _tile("Machines", *_machines(runs)),
    ]
    return join(
        [
            element("h1", text(title)),
            element("p", *_summary(known, numbers, runs), class_="summary"),
            element("dl", *tiles, class_="tiles"),
        ]
    )


def footer(runs: pd.DataFrame) -> Markup:
    """Where the page comes from; no date of its own, so that the same logs give the same page."""
    words = [REPOSITORY_WORDS]
    if len(runs):
        revisions = sorted({r[:10] for line in runs["git_revisions"] for r in line.split()})
        words.append(f"Runs made at git {', '.join(revisions) or 'unknown'}.")
    return element("p", code_spans(" ".join(words)))


def _title(known: int, numbers: int) -> str:
    if known == 0:
        return "None of the paper's numbers has been measured here yet"
    if known == numbers:
        return f"All {numbers} of the paper's cells have been measured here"
    return f"{known} of the paper's {numbers} cells have been measured here"


def _summary(known: int, numbers: int, runs: pd.DataFrame) -> list[Markup]:
    words = [
        text(
            "This page puts what the BSZO paper prints beside what this suite's own runs logged. Nothing is filled in: "
        ),
        element(
            "strong", text("a cell without a run is a dash, with the command that would run it.")
        ),
    ]
    if known < numbers:
        others = runs[~runs.reindex(columns=["model.name"])["model.name"].isin(PAPER_MODELS)]
        if len(others):
            models = ", ".join(sorted({str(m) for m in others["model.name"].dropna()}))
            words.append(
                text(
                    f" {len(others)} of the runs use a model of our own ({models}): they show that the suite works, "
                    "and say nothing about the paper's numbers."
                )
            )
    return words


PAPER_MODELS = ("roberta-large", "opt-1.3b", "mistral-7b", "opt-13b")


def _machines(runs: pd.DataFrame) -> tuple[str, str, Markup]:
    devices = runs.reindex(columns=["provenance.device"])["provenance.device"].dropna()
    days = sorted({day[:10] for day in runs["started"]}) if len(runs) else []
    span = " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "–"
    names = sorted(set(devices))
    gpu = any(not name.startswith("cpu") for name in names)
    kind = "No GPU among them" if names and not gpu else ""
    return (
        f"{len(names)}",
        f"device{'s' * (len(names) != 1)}, {span}",
        text(". ".join(part for part in (", ".join(names) or "none", kind) if part)),
    )


def _tile(label: str, figure: str, small: str, more: Markup) -> Markup:
    number = element("dd", text(figure + " "), element("small", text(small)), class_="figure")
    return element("div", element("dt", text(label)), number, element("dd", more, class_="more"))
