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
from analysis.report.table import COLLAPSED, Cell, Table, markdown, number
from analysis.select.paper_cells import GIB_IN_GB

SWEEPS = {
    "table4": "as the paper's code",
    "table4_fast": "streamed, philox",
    "table4_factors": "factors, philox",
}
"""Sweep -> how it makes a step: restore policy and noise."""
REFERENCE = "mezo"
QUANTITIES = {"step_ms": "step_ms", "memory_gb": "peak_gib"}  # the paper's name -> the runs'
COLUMNS = [
    *("model", "device", "sweep", "method", "status", "step_ms", "memory_gb"),
    *("time_ratio", "memory_ratio", "paper_time_ratio", "paper_memory_ratio", "speedup", "run_id"),
]


def ratios(filled: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """One row per run that has ended, with the columns COLUMNS.

    Args:
        filled: see `analysis.select.cell_runs.fill`, of the sweeps in SWEEPS.
        paper: the printed numbers.

    Returns:
        `time_ratio` and `memory_ratio`: over MeZO of the same model, device and sweep; where the sweep has no MeZO,
        of `table4_fast`. `speedup`: the time of the same method in `table4` over this one's. NaN without the other.
    """
    ended = filled[filled["status"].isin(["finished", "collapsed"])]
    rows: list[dict[str, Any]] = []
    for row in ended.to_dict("records"):
        finished = row["status"] == "finished"
        here = {
            name: float(row[key]) if finished else float("nan") for name, key in QUANTITIES.items()
        }
        here["memory_gb"] *= GIB_IN_GB
        known = {key: row[key] for key in ("model", "device", "sweep", "status", "run_id")}
        rows.append({str(k): v for k, v in known.items()} | {"method": row["optimizer"], **here})
    frame = pd.DataFrame(rows, columns=COLUMNS)
    numbers = frame.set_index(["model", "device", "sweep", "method"])[list(QUANTITIES)]
    printed = paper.rows("table4").set_index(["model", "method", "quantity"])["value"]
    for index, row in enumerate(frame.to_dict("records")):
        model, device, sweep, method = (row[key] for key in ("model", "device", "sweep", "method"))
        reference = sweep if sweep != "table4_factors" else "table4_fast"
        for name, quantity in (("time", "step_ms"), ("memory", "memory_gb")):
            base = _at(numbers[quantity], (model, device, reference, REFERENCE))
            frame.loc[index, f"{name}_ratio"] = row[quantity] / base  # type: ignore[index]
            given = _at(printed, (model, method, quantity))
            frame.loc[index, f"paper_{name}_ratio"] = given / _at(  # type: ignore[index]
                printed, (model, REFERENCE, quantity)
            )
        before = _at(numbers["step_ms"], (model, device, "table4", method))
        frame.loc[index, "speedup"] = before / row["step_ms"]  # type: ignore[index]
    return frame


def _at(series: pd.Series, key: tuple[str, ...]) -> float:
    return float(series[key]) if key in series.index else float("nan")


def page(frame: pd.DataFrame) -> str:
    """Markdown: a table per model and device, and how to read it."""
    if frame.empty:
        return (
            "# Time and memory of a step, over MeZO's\n\nNothing has been timed yet: `make measured` does it, and "
            "`python -m launch.submit sweep=table4` times the paper's part alone.\n"
        )
    parts = ["# Time and memory of a step, over MeZO's\n"]
    for keys, rows in frame.groupby(["model", "device"], sort=False):
        model, device = map(str, keys)  # type: ignore[misc]
        parts.append(markdown(_table(model, device, rows)))
    parts.append(
        "Times are medians of a run's steps; memory is what PyTorch allocated at most, without reserve and CUDA "
        "context. Ratios are over MeZO of the same sweep, model and machine (factors: over MeZO of `table4_fast`). "
        "The paper's are of its printed Table 4, on an H200. `*`: the run collapsed, and its few steps give no time.\n"
    )
    return "\n".join(parts)


def _table(model: str, device: str, rows: pd.DataFrame) -> Table:
    heads = [
        "method",
        "how",
        "ms",
        "time / MeZO",
        "paper",
        "GB",
        "memory / MeZO",
        "paper ",
        "faster",
    ]
    content = Table(f"{model_label(model)}, {device}", heads, names=2)
    order = sorted(
        rows.to_dict("records"),
        key=lambda row: (list(SWEEPS).index(row["sweep"]), method_order(row["method"])),
    )
    for row in order:
        dead = row["status"] == "collapsed"
        times = [number(row[key], ",.2f") for key in ("time_ratio", "paper_time_ratio")]
        sizes = [number(row[key], ",.2f") for key in ("memory_ratio", "paper_memory_ratio")]
        ms, gb = (Cell(COLLAPSED) if dead else number(row[key], ",.1f") for key in QUANTITIES)
        faster = number(row["speedup"], ",.1f") if row["sweep"] != "table4" else ""
        content.rows.append(
            [method_label(row["method"]), SWEEPS[row["sweep"]], ms, *times, gb, *sizes, faster]
        )
    return content


def write(filled: pd.DataFrame, paper: Paper, results: Path) -> list[Path]:
    """Write the page and its numbers to results/table4; the paths."""
    directory = results / "table4"
    directory.mkdir(parents=True, exist_ok=True)
    frame = ratios(filled, paper)
    paths = [directory / "efficiency.md", directory / "ratios.csv"]
    paths[0].write_text(page(frame), encoding="utf-8", newline="\n")
    frame.to_csv(paths[1], index=False, lineterminator="\n")
    return paths
