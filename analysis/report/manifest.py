"""What runs there are: a table of all of them, where each came from, and how much of each sweep they fill.

    python -m analysis manifest --runs out entity/project

writes results/runs.parquet, every run with all that it logged but its history, and results/manifest.csv, one line
per run that says where its numbers come from. It prints how far each sweep is filled.
"""

import json
from pathlib import Path

import pandas as pd

from analysis.logs.frames import Frames
from analysis.paper.names import SWEEPS
from analysis.report.markdown import csv
from analysis.report.table import Column, Table, console, show
from analysis.select.cell_runs import STATUSES, command, shortfall
from analysis.select.provenance import plain
from analysis.select.study_runs import PREFIX

VERSIONS = "provenance.versions."
COLUMNS = (
    *("run_id", "config_hash", "group", "status", "git_revisions", "provenance.git_dirty"),
    *("provenance.device", "started", "source", "fragments", "torn", "duplicates", "rows"),
    "last_step",
)
"""Columns of the manifest, without `provenance.`, and of the runs frame."""


def write(frames: Frames, results: Path) -> list[Path]:
    """Write runs.parquet and manifest.csv; the same logs give the same bytes; the two paths."""
    results.mkdir(parents=True, exist_ok=True)
    paths = [results / "runs.parquet", results / "manifest.csv"]
    frames.runs.apply(storable).to_parquet(paths[0], compression="zstd", index=False)
    paths[1].write_text(csv(manifest(frames.runs)), encoding="utf-8", newline="\n")
    return paths


def manifest(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per run: `COLUMNS`, as in the runs frame, and `versions` as "python 3.11.7 torch 2.9.0"."""
    table = runs.reindex(columns=list(COLUMNS)).rename(columns=lambda c: c.rpartition(".")[2])
    names = [key for key in runs.columns if key.startswith(VERSIONS)]
    texts = [
        " ".join(f"{key.removeprefix(VERSIONS)} {row[key]}" for key in names if pd.notna(row[key]))
        for row in runs[names].to_dict("records")
    ]
    table.insert(list(table).index("device"), "versions", texts)
    return table.convert_dtypes()


def storable(column: pd.Series) -> pd.Series:
    """A column of the runs frame as parquet can hold it: one of mixed values becomes one of JSON texts."""
    kinds = {type(plain(value)) for value in column.dropna()}
    if len(kinds) > 1 and not kinds <= {int, float}:
        return column.map(lambda value: json.dumps(plain(value)), na_action="ignore")
    return column


def show_coverage(filled: pd.DataFrame, frames: Frames) -> None:
    """Print how much of each sweep has been run, and what would make the rest."""
    terminal = console(150)
    show(coverage_table(filled), terminal)
    for path in frames.unidentified:
        terminal.print(f"killed before W&B wrote which run it is: {path}")
    for sentence in shortfall(filled):
        terminal.print(sentence)


def coverage_table(filled: pd.DataFrame) -> Table:
    """How much of each sweep has been run, and the command for the rest."""
    rows = []
    for sweep, cells in filled.groupby("sweep", sort=False):
        ended = int(cells["status"].isin(STATUSES[:2]).sum())
        ours = "ours: a study" if str(sweep).startswith(PREFIX) else "ours"
        rest = command(str(sweep)) if len(cells) > ended else "complete"
        row = {"sweep": sweep, "of": SWEEPS.get(str(sweep), {"name": ours})["name"], "rest": rest}
        ends = {status: int((cells["status"] == status).sum()) for status in STATUSES}
        rows.append(row | ends | {"cells": len(cells), "lacking": len(cells) - ended})
    counts = {"cells": "cells", "finished": "finished", "collapsed": "collapsed"}
    counts |= {"interrupted": "unfinished", "lacking": "lacking"}
    columns: dict[str, Column] = {"sweep": "sweep", "stands for": "of"}
    columns |= {heading: (key, ".0f") for heading, key in counts.items()}
    columns |= {"to run the rest": "rest"}
    said = "Every sweep is a file in conf/sweep. A run that several sweeps share is made once and counted in each."
    title = "Cells of every sweep"
    return Table.of(title, rows, columns, names=2, name="coverage-table", caption=[said])
