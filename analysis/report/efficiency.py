"""What a step of each method costs beside a step of MeZO on the same machine: time and memory, as ratios.

    python -m analysis efficiency                      writes results/table4/efficiency.md and ratios.csv

A time in milliseconds says much about a machine; how many times longer a method takes than another one that was timed
by the same sweep on the same machine says more about the methods. The runs are those of conf/sweep/table4 (the passes
of the paper's code), table4_fast and table4_factors (this suite's own). Runs that were timed on different machines
stand in different lines and are never divided by each other.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from analysis.paper.names import method_label, method_order, model_label
from analysis.paper.printed_numbers import Paper
from analysis.report import markdown
from analysis.report.table import COLLAPSED, Cell, Column, Table, number
from analysis.select.paper_cells import GIB_IN_GB

SWEEPS = {
    "table4": "as the paper's code",
    "table4_fast": "streamed, philox",
    "table4_factors": "factors, philox",
}
"""Sweep -> how it makes a step: restore policy and noise."""
REFERENCE = "mezo"
COLUMNS = [
    *("model", "device", "sweep", "method", "status", "step_ms", "memory_gb"),
    *("time_ratio", "memory_ratio", "paper_time_ratio", "paper_memory_ratio", "speedup", "run_id"),
]


def ratios(filled: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """One row per run that has ended, with the columns COLUMNS.

    Returns:
        `time_ratio` and `memory_ratio`: over MeZO of the same model, device and sweep; where the sweep has no MeZO,
        of `table4_fast`. `speedup`: the time of the same method in `table4` over this one's. NaN without the other.
    """
    frame = filled[filled["status"].isin(["finished", "collapsed"])].reset_index(drop=True)
    finished = frame["status"] == "finished"
    frame = frame.rename(columns={"optimizer": "method", "peak_gib": "memory_gb"})
    frame["step_ms"] = frame["step_ms"].where(finished)
    frame["memory_gb"] = GIB_IN_GB * frame["memory_gb"].where(finished)
    frame = frame.reindex(columns=COLUMNS)
    here = frame.groupby(["model", "device", "sweep", "method"])[["step_ms", "memory_gb"]].first()
    printed = paper.rows("table4").pivot(
        index=["model", "method"], columns="quantity", values="value"
    )
    reference = frame["sweep"].replace("table4_factors", "table4_fast")
    place = [frame["model"], frame["device"]]
    for quantity, name in {"step_ms": "time", "memory_gb": "memory"}.items():
        base = _at(here[quantity], *place, reference, REFERENCE)
        frame[f"{name}_ratio"] = frame[quantity] / base
        given = _at(printed[quantity], frame["model"], frame["method"])
        base = _at(printed[quantity], frame["model"], REFERENCE)
        frame[f"paper_{name}_ratio"] = given / base
    frame["speedup"] = _at(here["step_ms"], *place, "table4", frame["method"]) / frame["step_ms"]
    return frame


def _at(values: pd.Series, *keys: pd.Series | str) -> Any:
    """The values at these keys, each a column or the same for all rows; NaN where there is none."""
    rows = next(len(key) for key in keys if isinstance(key, pd.Series))
    columns = [[key] * rows if isinstance(key, str) else list(key) for key in keys]
    return values.reindex(pd.MultiIndex.from_arrays(columns)).to_numpy(float)


def page(frame: pd.DataFrame) -> str:
    """Markdown: a table per model and device, and how to read it."""
    groups = frame.groupby(["model", "device"], sort=False)
    tables = [_table(str(model), str(device), rows) for (model, device), rows in groups]
    return markdown.page("efficiency", tables=tables)


def _table(model: str, device: str, rows: pd.DataFrame) -> Table:
    def timed(key: str) -> Column:
        dead = Cell(COLLAPSED)
        return lambda row: dead if row["status"] == "collapsed" else number(row[key], ",.1f")

    columns: dict[str, Column] = {
        "method": lambda row: method_label(row["method"]),
        "how": lambda row: SWEEPS[row["sweep"]],
        "ms": timed("step_ms"),
        "time / MeZO": ("time_ratio", ",.2f"),
        "paper": ("paper_time_ratio", ",.2f"),
        "GB": timed("memory_gb"),
        "memory / MeZO": ("memory_ratio", ",.2f"),
        "paper ": ("paper_memory_ratio", ",.2f"),
        "faster": lambda row: "" if row["sweep"] == "table4" else number(row["speedup"], ",.1f"),
    }
    sweeps = list(SWEEPS)
    records = rows.to_dict("records")
    records.sort(key=lambda row: (sweeps.index(row["sweep"]), method_order(row["method"])))
    return Table.of(f"{model_label(model)}, {device}", records, columns, names=2)


def write(filled: pd.DataFrame, paper: Paper, results: Path) -> list[Path]:
    """Write the page and its numbers to results/table4; the paths."""
    frame = ratios(filled, paper)
    texts = {"efficiency.md": page(frame), "ratios.csv": markdown.csv(frame)}
    return markdown.write_texts(results / "table4", texts)
