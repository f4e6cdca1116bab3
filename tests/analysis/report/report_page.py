"""A page with something of everything: cells that are measured, collapsed, interrupted and missing, and single runs."""

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.logs.frames import Frames
from analysis.logs.history import History
from analysis.logs.sources import CACHE
from analysis.paper import printed_numbers
from analysis.report.page.build import Material, report
from analysis.select import sweep_cells
from analysis.select.cell_runs import fill
from tests.analysis.make_frames import made_frames

NASTY = 'cpu: <img src=x onerror=alert(1)> & "co" </script>'
SINGLE = {"gpt2-bszo": 0.0, "llama-bszo": np.nan, "qwen3-bszo": 1.0}
"""Runs without a sweep -> exit code: finished, without an end, failed."""


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
    """What such a page is made of; the quickstart is the newest sweep, one device would break a careless page."""
    cells = sweep_cells.cells((), CACHE)
    frames = made_frames(cells, status)
    runs = frames.runs.assign(steps=40.0)
    runs["exit_code"] = runs["exit_code"].astype(float)
    runs.loc[runs["status"] == "unfinished", "exit_code"] = np.nan
    runs.loc[runs["group"] == "quickstart", "started"] = "2026-02-01T12:00:00"
    runs.loc[runs["optimizer.name"] == "zero_shot", "provenance.device"] = NASTY
    bszo = runs[(runs["group"] == "table4") & (runs["optimizer.name"] == "bszo")].iloc[
        [0] * len(SINGLE)
    ]
    single = bszo.assign(run_id=list(SINGLE), group="", exit_code=list(SINGLE.values()))
    single["status"] = ["finished", "unfinished", "unfinished"]
    source = frames.history._rows
    rows = {**source, **dict.fromkeys(SINGLE, source[bszo["run_id"].iloc[0]])}
    both = Frames(pd.concat([runs, single], ignore_index=True), History(rows), ())
    return Material(both, fill(cells, both.runs), printed_numbers.load())


def write_page(path: Path) -> Path:
    """The page, to be opened."""
    path.write_text(report(material()), encoding="utf-8")
    return path
