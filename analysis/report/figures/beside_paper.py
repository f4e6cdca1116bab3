"""Memory and time per step beside what the paper prints, its Figure 2.

Measured values are filled, the paper's hollow. Where nothing has been measured, the paper's stand alone.
"""

import pandas as pd

from analysis.paper.names import UNTRAINED, method_order, model_label
from analysis.paper.printed_numbers import Paper
from analysis.report.figures.drawing import Figure, Panel, Series
from analysis.report.style import look
from analysis.select.paper_cells import GIB_IN_GB
from analysis.select.trials import Trials

EFFICIENCY = "table4"
QUANTITIES = {"memory_gb": "peak memory (GB)", "step_ms": "time per step (ms)"}
NOTHING = "Nothing of this has been measured yet: what is drawn is what the paper prints."


def efficiency(sweep: str, paper: Paper, trials: Trials | None) -> list[Figure]:
    """Memory and time per step by model and method, the paper's beside them for its own sweep; none without numbers."""
    data = _measured_efficiency(trials)
    if sweep == EFFICIENCY:
        rows = paper.rows("table4")[["model", "method", "quantity", "value"]]
        parts = [rows.assign(source="paper"), *([data] if len(data) else [])]
        data = pd.concat(parts, ignore_index=True)
    if data.empty:
        return []
    panels = [_bars(rows, QUANTITIES[str(name)]) for name, rows in data.groupby("quantity")]
    devices = sorted(data["device"].dropna().unique()) if "device" in data else []
    notes = [f"Measured on {', '.join(devices)}: medians over the sweep's runs."]
    notes = notes if devices else [NOTHING]
    if any(device.startswith("cpu") for device in devices):
        notes.append("On a CPU, memory is the peak of the whole process, libraries included.")
    notes += ["Hollow: the paper, on an H200."] * (sweep == EFFICIENCY)
    notes += trials.notes if trials else ()
    return [Figure("efficiency", f"{sweep}: memory and time per step", panels, notes, 2)]


def _measured_efficiency(trials: Trials | None) -> pd.DataFrame:
    """Median memory and time of each model and method that trains."""
    if trials is None:
        return pd.DataFrame()
    table = trials.table[~trials.table["method"].isin(UNTRAINED)]
    several = table.groupby("model")["precision"].transform("nunique") > 1
    model = table["model"].where(~several, table["model"] + " " + table["precision"])
    table = table.assign(memory_gb=table["peak_gib"] * GIB_IN_GB, model=model)
    keys = ["model", "method", "quantity", "device"]
    long = table.melt(["model", "method", "device"], list(QUANTITIES), "quantity", "value")
    medians = long.dropna(subset="value").groupby(keys, sort=False)["value"].median()
    return medians.reset_index().assign(source="measured")


def _bars(rows: pd.DataFrame, label: str) -> Panel:
    """Bars by model, within it by method; the paper's hollow one to the right of the measured one."""
    models = list(rows["model"].unique())
    methods = sorted(rows["method"].unique(), key=method_order)
    sources = sorted(rows["source"].unique())  # measured, paper
    width = 0.84 / (len(methods) * len(sources))
    series = []
    for row in rows.to_dict("records"):
        place = methods.index(row["method"]) * len(sources) + sources.index(row["source"])
        x = models.index(row["model"]) - 0.42 + (place + 0.5) * width
        words = f"{look(row['method']).label}, {model_label(row['model'])}, {row['source']}"
        hollow = row["source"] == "paper"
        series.append(Series(row["method"], [x], [row["value"]], words, "bar", hollow=hollow))
    ticks = {float(i): model_label(model) for i, model in enumerate(models)}
    return Panel(label, "", label, series, xticks=ticks, width=width)
