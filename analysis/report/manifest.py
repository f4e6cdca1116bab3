"""What runs there are: a table of all of them, where each came from, and how much of each sweep they fill.

    python -m analysis manifest --runs out entity/project

writes results/runs.parquet, every run with all that it logged but its history, and results/manifest.csv, one line
per run that says where its numbers come from. It prints how far each sweep is filled; with --strict it fails unless
all are.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.logs.frames import Frames
from analysis.report.table import Table, console, number, show
from analysis.select import cell_runs, sweep_cells

VERSIONS = "provenance.versions."
COLUMNS = {
    "run_id": "run_id",
    "config_hash": "config_hash",
    "group": "group",
    "status": "status",
    "git_revisions": "git_revisions",
    "git_dirty": "provenance.git_dirty",
    "device": "provenance.device",
    "started": "started",
    "source": "source",
    "fragments": "fragments",
    "torn": "torn",
    "duplicates": "duplicates",
    "rows": "rows",
    "last_step": "last_step",
}
"""Column of the manifest -> column of the runs frame."""


def write(frames: Frames, results: Path) -> list[Path]:
    """Write runs.parquet and manifest.csv; the same logs give the same bytes.

    Args:
        frames: all runs.
        results: a directory, made if there is none.

    Returns:
        The two paths.
    """
    results.mkdir(parents=True, exist_ok=True)
    paths = [results / "runs.parquet", results / "manifest.csv"]
    pq.write_table(runs_table(frames.runs), paths[0], compression="zstd")
    manifest(frames.runs).to_csv(paths[1], index=False, lineterminator="\n")
    return paths


def manifest(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per run: who it is and where its numbers come from.

    Returns:
        The columns of `COLUMNS`, as in the runs frame, and `versions` as "python 3.11.7 torch 2.9.0".
    """
    table = runs.reindex(columns=list(COLUMNS.values())).set_axis(list(COLUMNS), axis=1)
    names = [key for key in runs.columns if key.startswith(VERSIONS)]
    texts = [
        " ".join(f"{key.removeprefix(VERSIONS)} {row[key]}" for key in names if pd.notna(row[key]))
        for row in runs[names].to_dict("records")
    ]
    table.insert(list(COLUMNS).index("device"), "versions", texts)
    return table.convert_dtypes()


def runs_table(runs: pd.DataFrame) -> pa.Table:
    """The runs frame as parquet can hold it: a column of mixed values becomes one of JSON texts."""
    return pa.table({str(key): _array(runs[key]) for key in runs.columns})


def _array(column: pd.Series) -> pa.Array:
    values = [None if _absent(value) else _plain(value) for value in column]
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and kinds != {int}:
        return pa.array([None if v is None else float(v) for v in values], pa.float64())
    if len(kinds) > 1:
        values = [None if value is None else json.dumps(value) for value in values]
    return pa.array(values) if kinds else pa.nulls(len(values), pa.string())


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def show_overview(frames: Frames, sweeps: Sequence[str], cache: Path, strict: bool) -> None:
    """Print how many cells of each sweep are in which state, and what would make the rest.

    Raises:
        LogError: under `strict`, a cell is missing, unfinished or duplicated.
    """
    filled = cell_runs.fill(sweep_cells.cells(sweeps, cache), frames.runs)
    terminal = console(100)
    show(overview(filled), terminal)
    others = cell_runs.unexpected(sweep_cells.cells((), cache), frames.runs)
    if len(others):
        names = ", ".join(others["run_id"].head(5)) + ", ..." * (len(others) > 5)
        terminal.print(f"{len(others)} runs fill no cell of any sweep: {names}")
    for path in frames.unidentified:
        terminal.print(f"killed before W&B wrote which run it is: {path}")
    if strict:
        cell_runs.require_complete(filled)
    for sentence in cell_runs.shortfall(filled):
        terminal.print(sentence)


def overview(filled: pd.DataFrame) -> Table:
    """How many cells of each sweep are in which state."""
    content = Table("Cells of the sweeps", ["sweep", "runs", *cell_runs.STATUSES])
    for sweep, rows in filled.groupby("sweep", sort=False):
        counts = [int((rows["status"] == status).sum()) for status in cell_runs.STATUSES]
        content.rows.append(
            [str(sweep), *(number(count or None, ".0f") for count in [len(rows), *counts])]
        )
    return content
