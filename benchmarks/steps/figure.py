"""Where a step's time goes: a stacked bar per method, its roofline a line across it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from analysis.paper.names import method_order
from analysis.report.figures.drawing import Figure, Panel, Series, write
from analysis.report.style import named
from benchmarks.steps.cases import FORWARD, PAPER_WAY
from benchmarks.steps.records import Row
from benchmarks.steps.tables import label, title

PARTS = {
    "forward": named("mezo", "forward passes"),
    "weights": named("bszo", "passes over the weights"),
    "rest": named("bszo_b", "rest"),
}
ROOFLINE, RELEASED = named("zero_shot", "roofline"), named("sgd", "the released code's way")
SHARE = 0.27  # of the distance between two methods: a bar's width


def draw(rows: Sequence[Row], directory: Path) -> list[Path]:
    """Writes step_times.png and .pdf, and the numbers behind them; returns the paths."""
    settings = {row.setting: title(row) for row in rows}
    panels, kept = [], []
    for setting, heading in sorted(settings.items()):
        bars = chosen([row for row in rows if row.setting == setting])
        if bars:
            kept += bars
            panels.append(_panel(heading, bars))
    data = pd.DataFrame([asdict(row) | {"rest_ms": row.rest_ms} for row in kept])
    notes = (
        "Left of each method, where measured: the released code's way. Then: this suite with the paper's restore and"
        " noise; then with the fastest. Roofline: bytes, operations and normals over the rates that the device reached"
        " when each was measured alone. It is an estimate, not a bound: a pass that does several of them at once can be"
        " faster.",
    )
    return write(
        Figure("step_times", "Time of a step", panels, notes, columns=1, data=data), directory
    )


def chosen(rows: Sequence[Row]) -> list[Row]:
    """Returns, per method in the tables' order, its row in the paper's way and its fastest one."""
    found = []
    for method in sorted({row.method for row in rows} - {FORWARD}, key=method_order):
        own = [row for row in rows if row.method == method]
        fastest = min(own, key=lambda row: row.step_ms)
        paper = [row for row in own if (row.restore, row.noise) == PAPER_WAY]
        found += [*paper, *([fastest] if fastest not in paper else [])]
    return found


def _panel(heading: str, bars: Sequence[Row]) -> Panel:
    methods = list(dict.fromkeys(row.method for row in bars))
    series = []
    for i, method in enumerate(methods):
        own = [row for row in bars if row.method == method]
        plain = next((row.plain_ms for row in own if row.plain_ms is not None), None)
        if plain is not None:
            series.append(
                Series(RELEASED, [i], [plain], label(method), "bar", low=[0.0], high=[plain])
            )
        for j, row in enumerate(own):
            series += _bar(i + SHARE * (j + (plain is not None)), row)
    ticks = {i + SHARE: label(method) for i, method in enumerate(methods)}
    return Panel(heading, "", "ms per step", series, xticks=ticks, width=SHARE)


def _bar(at: float, row: Row) -> list[Series]:
    """The parts of a step on top of each other, and its roofline."""
    series, below = [], 0.0
    words = f"{label(row.method)}, {row.restore}, {row.noise}"
    for part, method in PARTS.items():
        top = below + getattr(row, f"{part}_ms")
        series.append(Series(method, [at], [top], words, "bar", low=[below], high=[top]))
        below = top
    reach = SHARE * 0.5
    return [
        *series,
        Series(ROOFLINE, [at - reach, at + reach], [row.roofline_ms] * 2, words, weight=0.99),
    ]
