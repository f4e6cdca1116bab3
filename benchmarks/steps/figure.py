"""Where a step's time goes: a stacked bar per method, its roofline a line across it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from analysis.paper.names import method_order
from analysis.report.figures.drawing import Figure, Panel, Series, write
from analysis.report.style import named
from benchmarks.steps.cases import FORWARD, PAPER_WAY
from benchmarks.steps.records import COLUMNS, SETTING, with_sums
from benchmarks.steps.tables import label, title

PARTS = {
    "forward": named("mezo", "forward passes"),
    "weights": named("bszo", "passes over the weights"),
    "rest": named("bszo_b", "rest"),
}
ROOFLINE, RELEASED = named("zero_shot", "roofline"), named("sgd", "the released code's way")
SHARE = 0.27  # of the distance between two methods: a bar's width


def draw(rows: pd.DataFrame, directory: Path) -> list[Path]:
    """Writes step_times.png and .pdf, and the numbers behind them; returns the paths."""
    panels, kept = [], []
    for _, own in with_sums(rows).groupby(SETTING):
        if bars := chosen(own):
            kept += bars
            panels.append(_panel(title(bars[0]), bars))
    data = pd.DataFrame(kept, columns=[*COLUMNS, "rest_ms"])
    notes = (
        "Left of each method, where measured: the released code's way. Then: this suite with the paper's restore and"
        " noise; then with the fastest. Roofline: bytes, operations and normals over the rates that the device reached"
        " when each was measured alone. It is an estimate, not a bound: a pass that does several of them at once can be"
        " faster.",
    )
    figure = Figure("step_times", "Time of a step", panels, notes, columns=1, data=data)
    return write(figure, directory)


def chosen(rows: pd.DataFrame) -> list[Any]:
    """Returns, per method in the tables' order, its row in the paper's way and its fastest one."""
    found = []
    for method in sorted({*rows["method"]} - {FORWARD}, key=method_order):
        own = rows[rows["method"] == method]
        is_paper = (own["restore"] == PAPER_WAY[0]) & (own["noise"] == PAPER_WAY[1])
        fastest = own["step_ms"].idxmin()
        both = [*own.index[is_paper], *([] if is_paper[fastest] else [fastest])]
        found += [own.loc[i] for i in both]
    return found


def _panel(heading: str, bars: list[Any]) -> Panel:
    methods, series = list(dict.fromkeys(row["method"] for row in bars)), []
    for i, method in enumerate(methods):
        own = [row for row in bars if row["method"] == method]
        plain = [row["plain_ms"] for row in own if pd.notna(row["plain_ms"])][:1]
        if plain:
            ends = {"low": [0.0], "high": plain}
            series.append(Series(RELEASED, [i], plain, label(method), "bar", **ends))
        for j, row in enumerate(own):
            series += _bar(i + SHARE * (j + len(plain)), row)
    ticks = {i + SHARE: label(method) for i, method in enumerate(methods)}
    return Panel(heading, "", "ms per step", series, xticks=ticks, width=SHARE)


def _bar(at: float, row: Any) -> list[Series]:
    """The parts of a step on top of each other, and its roofline."""
    series, below, reach = [], 0.0, SHARE * 0.5
    words = f"{label(row['method'])}, {row['restore']}, {row['noise']}"
    for part, method in PARTS.items():
        top = below + row[f"{part}_ms"]
        series.append(Series(method, [at], [top], words, "bar", low=[below], high=[top]))
        below = top
    ends, heights = [at - reach, at + reach], [row["roofline_ms"]] * 2
    return [*series, Series(ROOFLINE, ends, heights, words, weight=0.99)]
