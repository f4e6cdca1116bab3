"""Memory and time per step beside what the paper prints, its Figure 2.

Measured values are filled, the paper's hollow. Where nothing has been measured, the paper's stand alone.
"""

from typing import Any

import altair as alt
import pandas as pd

from analysis.paper.names import UNTRAINED, method_label, method_order, model_label
from analysis.paper.printed_numbers import load
from analysis.report.figures.drawing import WIDTH, Figure, look
from analysis.select.cells import shown
from analysis.select.paper_cells import GIB_IN_GB

EFFICIENCY = "table4"
QUANTITIES = {"memory_gb": "peak memory (GB)", "step_ms": "time per step (ms)"}
NOTHING = "Nothing of this has been measured yet: what is drawn is what the paper prints."


def efficiency(cells: pd.DataFrame, sweep: str = "") -> list[Figure]:
    """Memory and time per step by model and method, the paper's beside them for its own sweep; none without numbers."""
    sweep = sweep or str(cells["sweep"].iloc[0])
    data = _measured_efficiency(shown(cells))
    if sweep == EFFICIENCY:
        rows = load().table(4)[["model", "method", "quantity", "value"]]
        parts = [rows.assign(source="paper"), *([data] if len(data) else [])]
        data = pd.concat(parts, ignore_index=True)
    if data.empty:
        return []
    panels = [_bars(rows, QUANTITIES[str(name)]) for name, rows in data.groupby("quantity")]
    chart = alt.hconcat(*(bars for _, bars in panels), spacing=24)
    frame = pd.concat([rows for rows, _ in panels], ignore_index=True)
    devices = sorted(data["device"].dropna().unique()) if "device" in data else []
    measured = (
        f"Measured on {', '.join(devices)}: medians over the seeds at the chosen learning rate."
    )
    notes = [measured if devices else NOTHING]
    if any(device.startswith("cpu") for device in devices):
        notes.append("On a CPU, memory is the peak of the whole process, libraries included.")
    notes += ["Hollow: the paper, on an H200."] * (sweep == EFFICIENCY)
    return [Figure("efficiency", f"{sweep}: memory and time per step", frame, chart, notes)]


def _measured_efficiency(table: pd.DataFrame) -> pd.DataFrame:
    """Median memory and time of each model and method that trains, at its chosen learning rate as in the tables."""
    table = table[table["chosen"] & ~table["method"].isin(UNTRAINED)]
    several = table.groupby("model")["precision"].transform("nunique") > 1
    model = table["model"].where(~several, table["model"] + " " + table["precision"])
    table = table.assign(memory_gb=table["peak_gib"] * GIB_IN_GB, model=model)
    keys = ["model", "method", "quantity", "device"]
    long = table.melt(["model", "method", "device"], list(QUANTITIES), "quantity", "value")
    medians = long.dropna(subset="value").groupby(keys, sort=False)["value"].median()
    return medians.reset_index().assign(source="measured")


def _bars(rows: pd.DataFrame, label: str) -> tuple[pd.DataFrame, alt.LayerChart]:
    """The rows of a csv, and bars by model, within it by method: the paper's hollow one behind the measured."""
    models = list(rows["model"].unique())
    methods = sorted(rows["method"].unique(), key=method_order)
    sources = sorted(rows["source"].unique())  # measured, paper
    order = [f"{method} {source}" for method in methods for source in sources]
    drawn = rows.assign(
        solid=[0.06 if source == "paper" else 1.0 for source in rows["source"]],
        place=rows["method"] + " " + rows["source"],
        label=rows["method"].map(method_label),
        model=rows["model"].map(model_label),
        said=[f"{value:.1f}" if value < 100 else f"{value:,.0f}" for value in rows["value"]],
    )
    legend = alt.Legend(symbolType="square", symbolOpacity=1)
    colours = alt.Scale(
        domain=[*map(method_label, methods)], range=[look(method).colour for method in methods]
    )
    colour = alt.Color("label:N", sort=None, scale=colours, legend=legend)
    solid = alt.FillOpacity("solid:Q", scale=None, legend=None)
    base = alt.Chart(drawn[["model", "place", "label", "value", "said", "source", "solid"]]).encode(
        alt.X("model:N", sort=None, title=None, axis=alt.Axis(labelAngle=0)),
        alt.Y("value:Q", title=label),
        xOffset=alt.XOffset("place:N", sort=order),
    )
    bars = base.mark_bar(strokeWidth=1).encode(color=colour, stroke=colour, fillOpacity=solid,
        tooltip=["label:N", "model:N", "source:N", "said:N"])  # fmt: skip
    texts = base.mark_text(angle=270, align="left", dx=4, fontSize=8, color="#444444")
    chart: alt.LayerChart = alt.layer(bars, texts.encode(text="said:N"))  # type: ignore[assignment]
    words = drawn["label"] + ", " + drawn["model"] + ", " + rows["source"]
    known: dict[str, Any] = {"panel": label, "quantity": label, "series": words, "shape": "bar"}
    place = [models.index(model) for model in rows["model"]]
    frame = rows.assign(**known, x=place, y=rows["value"])
    return frame, chart.properties(width=WIDTH / 2 - 70, height=220)
