"""Where a step's time goes: a stacked bar per method, the floor a line across it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.paper.names import method_order
from analysis.report.figures.drawing import Drawing, Panel, write
from analysis.report.style import INK, LOOKS, MUTED, RULE
from benchmarks.steps.cases import FORWARD, PAPER_WAY
from benchmarks.steps.records import Row
from benchmarks.steps.tables import label, title

PARTS = {
    "forward": ("forward passes", LOOKS["mezo"].colour),
    "weights": ("passes over the weights", LOOKS["bszo"].colour),
    "rest": ("rest", LOOKS["bszo_b"].colour),
}
RELEASED = RULE
SHARE = 0.27  # of the distance between two methods: a bar's width


def draw(rows: Sequence[Row], directory: Path) -> list[Path]:
    """Writes step_times.png and .pdf, and the numbers behind them; returns the paths."""
    settings = {row.setting: title(row) for row in rows}
    panels, kept = [], []
    for setting, heading in sorted(settings.items()):
        bars = chosen([row for row in rows if row.setting == setting])
        if bars:
            kept += bars
            panels.append(Panel(heading, partial(_panel, bars=bars)))
    data = pd.DataFrame([asdict(row) | {"rest_ms": row.rest_ms} for row in kept])
    legend = [Patch(color=colour, label=words) for words, colour in PARTS.values()]
    legend.append(Line2D([], [], color=INK, lw=1.4, label="floor"))
    if any(row.plain_ms is not None for row in kept):
        legend.append(Patch(color=RELEASED, label="the released code's way"))
    notes = (
        "Left of each method, where measured: the released code's way. Then: this suite with the paper's restore and"
        " noise; then with the fastest, named below the bar. floor: bytes, operations and normals over what the"
        " device does at best.",
    )
    drawing = Drawing("step_times", "Time of a step", panels, legend, data, notes, columns=1)
    directory.mkdir(parents=True, exist_ok=True)
    return write(drawing, directory)


def chosen(rows: Sequence[Row]) -> list[Row]:
    """Returns, per method in the tables' order, its row in the paper's way and its fastest one."""
    found = []
    for method in sorted({row.method for row in rows} - {FORWARD}, key=method_order):
        own = [row for row in rows if row.method == method]
        fastest = min(own, key=lambda row: row.step_ms)
        paper = [row for row in own if (row.restore, row.noise) == PAPER_WAY]
        found += [*paper, *([fastest] if fastest not in paper else [])]
    return found


def _panel(axes: Axes, bars: Sequence[Row]) -> None:
    methods = list(dict.fromkeys(row.method for row in bars))
    for i, method in enumerate(methods):
        own = [row for row in bars if row.method == method]
        plain = next((row.plain_ms for row in own if row.plain_ms is not None), None)
        places = [i + SHARE * (j + (0 if plain is None else 1)) for j in range(len(own))]
        if plain is not None:
            axes.bar(i, plain, SHARE * 0.9, color=RELEASED)
        for at, row in zip(places, own, strict=True):
            _bar(axes, at, row)
    middle = [i + SHARE for i in range(len(methods))]
    axes.set_xticks(middle, [label(method) for method in methods])
    axes.tick_params(axis="x", length=0, pad=9)
    axes.set_ylabel("ms per step")
    axes.grid(axis="x", visible=False)
    axes.set_xlim(-0.4, len(methods) - 0.05)


def _bar(axes: Axes, at: float, row: Row) -> None:
    below = 0.0
    for part, (_, colour) in PARTS.items():
        height = getattr(row, f"{part}_ms")
        axes.bar(at, height, SHARE * 0.9, bottom=below, color=colour)
        below += height
    reach = SHARE * 0.55
    axes.plot(
        [at - reach, at + reach], [row.floor_ms] * 2, color=INK, lw=1.4, solid_capstyle="butt"
    )
    if (row.restore, row.noise) != PAPER_WAY:
        axes.annotate(
            row.restore,
            (at, 0),
            (0, -2),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=5,
            color=MUTED,
        )
