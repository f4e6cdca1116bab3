"""What was run: every run, the machines, and what a run's id stands for."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.paper.names import model_label, task_label
from analysis.report.page.tables import Cell, PageTable, Row
from analysis.report.style import look

COLUMNS = (
    *("run", "sweep", "model", "task", "method", "precision", "lr", "seed", "status"),
    *(
        "val. %",
        "test %",
        "steps",
        "passes per step",
        "ms per step",
        "peak GiB",
        "started",
        "device",
    ),
)
WORDS = {
    "model": "model.name",
    "task": "task.name",
    "method": "optimizer.name",
    "precision": "precision.name",
    "device": "provenance.device",
}
KINDS = {"collapsed": "collapsed", "unfinished": "missing"}


def runs_table(runs: pd.DataFrame) -> PageTable:
    """One row per run of the runs frame, whatever became of it."""
    rows = [_row(row) for row in runs.to_dict("records")]
    below = [
        "Times are in UTC. `ms per step` is the median; on a CPU, memory is the whole process's."
    ]
    return PageTable("runs-table", "Every run that was read", COLUMNS, rows, below, stack=True)


def devices_table(runs: pd.DataFrame) -> PageTable:
    """What was run on which device, when, and with which versions."""
    frame = pd.DataFrame(
        {
            "device": _column(runs, "provenance.device"),
            "torch": _column(runs, "provenance.versions.torch"),
            "sweep": runs["group"].replace("", "none"),
            "day": runs["started"].str.slice(0, 10),
            "revision": _column(runs, "provenance.git_revision").str.slice(0, 10),
            "seconds": pd.to_numeric(runs.reindex(columns=["time/total_s"])["time/total_s"]),
            "status": runs["status"],
        }
    )
    rows = []
    for (device, sweep), part in frame.groupby(["device", "sweep"], sort=True):
        counts = part["status"].value_counts()
        days = sorted(part["day"].unique())
        hours = part["seconds"].sum() / 3600
        rows.append(
            Row(
                [
                    Cell(str(device) or "unknown"),
                    Cell(str(sweep)),
                    Cell(_joined(part["torch"])),
                    Cell(_joined(part["revision"])),
                    *(
                        Cell(str(int(counts.get(s, 0))))
                        for s in ("finished", "collapsed", "unfinished")
                    ),
                    Cell(f"{hours:.2f}"),
                    Cell(" to ".join(dict.fromkeys([days[0], days[-1]]))),
                ]
            )
        )
    columns = (
        "device",
        "sweep",
        "torch",
        "git",
        "finished",
        "collapsed",
        "unfinished",
        "hours",
        "days",
    )
    return PageTable("devices-table", "What was run on which device, and when", columns, rows)


def provenance(runs: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Run id -> what the page shows when it is pointed at: short words and their values."""
    return {str(row["run_id"]): _facts(row) for row in runs.to_dict("records")}


def _facts(row: Mapping[Any, Any]) -> dict[str, str]:
    def known(key: str, form: str = "") -> str:
        value = row.get(key)
        return "" if value is None or pd.isna(value) else format(value, form)

    facts = {
        "run": f"{known('optimizer.name')} on {known('task.name')}, {known('model.name')}, {known('precision.name')}",
        "sweep": known("group") or "none",
        "lr": known("lr", "g"),
        "seed": known("seed", ".0f"),
        "status": known("status"),
        "started": known("started").replace("T", " ") + " UTC",
        "device": known("provenance.device"),
        "git": known("provenance.git_revision")[:10],
        "torch": known("provenance.versions.torch"),
    }
    return {key: value for key, value in facts.items() if value}


def _row(row: Mapping[Any, Any]) -> Row:
    def word(key: str) -> str:
        value = row.get(WORDS[key])
        return value if isinstance(value, str) else ""

    def number(key: str, form: str, factor: float = 1.0) -> Cell:
        value = row.get(key)
        if value is None or pd.isna(value):
            return Cell("–", sort=-1.0)
        return Cell(format(factor * float(value), form), sort=factor * float(value))

    status = str(row["status"])
    facet = {key: word(key) for key in ("model", "task", "method", "precision")}
    return Row(
        [
            Cell(str(row["run_id"]), runs=(str(row["run_id"]),)),
            Cell(str(row["group"]) or "none"),
            Cell(model_label(facet["model"])),
            Cell(task_label(facet["task"])),
            Cell(look(facet["method"]).label),
            Cell(facet["precision"]),
            number("lr", "g"),
            number("seed", ".0f"),
            Cell(_status(row), kind=KINDS.get(status, "")),
            number("best/val_accuracy", ".1f", 100),
            number("best/test_accuracy", ".1f", 100),
            number("run/steps", ",.0f"),
            number("run/forwards_per_step", "g"),
            number("time/step_ms_median", ".1f"),
            number("mem/peak_gib", ".2f"),
            Cell(str(row["started"]).replace("T", " ")),
            Cell(word("device")),
        ],
        facet,
    )


def _status(row: Mapping[Any, Any]) -> str:
    step = row.get("run/collapse_step")
    if row["status"] == "collapsed" and step is not None and not pd.isna(step):
        return f"* collapsed at step {int(step)}"
    return f"– {row['status']}" if row["status"] == "unfinished" else str(row["status"])


def _column(runs: pd.DataFrame, key: str) -> pd.Series:
    return runs.reindex(columns=[key])[key].fillna("").astype(str)


def _joined(values: pd.Series) -> str:
    return ", ".join(sorted({str(value) for value in values if value})) or "unknown"
