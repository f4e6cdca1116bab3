"""A page with something of everything: cells of the paper that are measured, collapsed, interrupted and missing."""

from pathlib import Path

import pandas as pd

from analysis.logs.sources import CACHE
from analysis.paper import printed_numbers
from analysis.report.page.command_line import Material, report
from analysis.select import sweep_cells
from analysis.select.cell_runs import fill
from tests.analysis.make_frames import made_frames

RESULTS = Path(__file__).parents[3] / "results"


def status(cell: dict) -> str:
    """Table 4 is complete, one task of Table 3 has collapses, the quickstart an interrupted run."""
    if cell["sweep"] == "table4":
        return "finished"
    if cell["sweep"] == "table3_mistral_7b" and cell["task"] == "trec":
        return "collapsed" if cell["optimizer"] == "hizoo" else "finished"
    if cell["sweep"] == "quickstart":
        return "unfinished" if cell["optimizer"] == "bszo" and cell["lr"] > 5e-4 else "finished"
    return "missing"


def material() -> Material:
    """What such a page is made of; one run has a name that would break a careless page."""
    cells = sweep_cells.cells((), CACHE)
    frames = made_frames(cells, status)
    nasty = frames.runs["optimizer.name"] == "zero_shot"
    frames.runs.loc[nasty, "provenance.device"] = (
        'cpu: <img src=x onerror=alert(1)> & "co" </script>'
    )
    return Material(frames, fill(cells, frames.runs), printed_numbers.load(), RESULTS)


def empty_material() -> Material:
    """No run at all."""
    cells = sweep_cells.cells((), CACHE)
    frames = made_frames(cells.iloc[:1])
    runs: pd.DataFrame = frames.runs.iloc[:0]
    nothing = type(frames)(runs, frames.history, ())
    return Material(nothing, fill(cells, runs), printed_numbers.load(), RESULTS)


def write_page(path: Path) -> Path:
    """The page, to be opened."""
    path.write_text(report(material()), encoding="utf-8")
    return path
