"""The measured slopes as a table in Markdown and as a figure."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.paper.names import model_label
from analysis.report.figures.drawing import Drawing, Panel, write
from analysis.report.style import INK, LOOKS, MUTED
from analysis.report.text_table import TextTable, markdown

SERIES = {
    "slope": ("slope itself, float32", INK, ""),
    "probe": ("error by rounding θ ± εz", LOOKS["lozo"].colour, "v"),
    "forward": ("by the forward pass", LOOKS["mezo"].colour, "o"),
    "loss": ("by the loss in the dtype", LOOKS["bszo"].colour, "D"),
}
LINES: dict[int, tuple[Any, str | None]] = {1: ("-", None), 2: ((0, (3, 1.5)), "white")}
"""Sides of a slope -> its line, and what fills its markers."""
SHORT = {"bfloat16": "bf16", "float16": "fp16"}
SIDES = {1: "one-sided", 2: "two-sided"}
HEAD = ("model", "dtype", "ε", "slope of", "slope", "probe", "forward", "loss", "all", "sign %")


def page(frame: pd.DataFrame) -> str:
    """Returns a table of all rows, with where they come from."""
    rows = [
        [
            *(model_label(r.model), SHORT[r.dtype], f"{r.eps:g}", SIDES[r.sides]),
            *(f"{value:.3g}" for value in (r.slope, r.probe, r.forward, r.loss, r.error)),
            f"{100 * r.right_sign:.0f}",
        ]
        for r in frame.itertuples()
    ]
    caption = [
        "Root mean square of slopes in float32, and of the error that each rounding adds; all: their sum's;"
        " sign: slopes whose sign is right with all three (0 has none)."
    ]
    table = TextTable("Slopes in half precision", HEAD, rows, caption=caption, names=4)
    made = frame.groupby(["device", "torch", "revision"])["date"].max()
    lines = [
        f"{device}; torch {torch}; revision {revision}; {date}"
        for (device, torch, revision), date in made.items()
    ]
    counts = ", ".join(
        f"{model_label(model)}: {n} directions"
        for model, n in frame.groupby("model")["directions"].min().items()
    )
    return "\n\n".join([markdown(table).rstrip(), counts + ".", *lines]) + "\n"


def draw(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Writes slope_errors.png and .pdf and the numbers behind them; returns the paths."""
    values = frame[list(SERIES)].to_numpy()
    limits = values[values > 0].min() / 2, values.max() * 2
    panels = [
        Panel(f"{model_label(model)}, {SHORT[dtype]}", partial(_panel, own=own, limits=limits))
        for (model, dtype), own in frame.groupby(["model", "dtype"])
    ]
    legend = [
        Line2D([], [], color=colour, marker=marker, label=words)
        for words, colour, marker in SERIES.values()
    ]
    legend += [
        Line2D([], [], color=MUTED, ls=line, mfc=fill, marker="s", label=SIDES[sides])
        for sides, (line, fill) in LINES.items()
    ]
    notes = (
        "Root mean squares over random directions, each on a mini-batch of its own, at the pretrained weights. Where an"
        " error is above the black line, a slope says more about rounding than about the loss.",
    )
    title = "What a slope is made of in half precision"
    data = frame.drop(columns=["device", "revision", "torch", "date"])
    drawing = Drawing("slope_errors", title, panels, legend, data, notes, columns=2)
    return write(drawing, directory)


def _panel(axes: Axes, own: pd.DataFrame, limits: tuple[float, float]) -> None:
    for sides, rows in own.sort_values("eps").groupby("sides"):
        line, fill = LINES[sides]
        for name, (_, colour, marker) in SERIES.items():
            face = colour if fill is None else fill
            axes.loglog(rows["eps"], rows[name], color=colour, marker=marker, ls=line, mfc=face)
    axes.set_ylim(*limits)
    axes.set_xlabel("ε")
    axes.set_ylabel("nats per unit of ε z")
