"""Figures: a long frame in, an Altair chart out, and the files that it is written to.

A frame has a row per point: `panel` (title), `quantity` and `axis` (words of the two axes), `method` (or a variant of
one, see `look`), `series` (what a reader is told who points at it), `shape`, `x`, `y`, `low` and `high` (ends of
a band or of a bar), `runs` (ids), `best` (drawn larger) and `end` (text behind the line).

The colours of the paper's six methods are told apart by colour-blind readers and, by lightness, in greyscale. Marks
say the same again. Both are fixed once, in names.yaml.

Shapes: `line`, `points`, `level` (a horizontal line), `cross` (a collapse; at -inf it lies at the panel's foot).
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from textwrap import wrap
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from analysis.logs.fragments import whole
from analysis.logs.sources import CACHE
from analysis.paper.names import METHODS, method_label, method_order, plain
from analysis.report.markdown import csv, write_texts

MUTED = "#777777"  # remarks
# Sequential, for values of one quantity that have an order (learning rates, k): light to dark.
VARIANT_MARKS = ("circle", "square", "triangle-up", "triangle-down", "diamond", "cross")
RAMP = ("#B9C7D6", "#8FA5BC", "#64829F", "#3A5F83", "#0F3B66", "#061F38")
COLUMNS = ("panel", "quantity", "method", "series", "shape", "x", "y", "low", "high", "runs")
"""Of a figure's csv."""

WIDTH, PPI = 760, 150
"""Pixels of a figure's width, and of an inch of its png."""

NOTE_CHARACTERS = 150  # that fit into the width
FEW = 6  # lines of a panel that are named at their ends
LEADER = 12  # pixels between a line's end and its text, which may lie higher or lower
BANDS = 8  # lines of a panel whose bands do not cover each other
CROSS = "M-.6,-.6L.6,.6M-.6,.6L.6,-.6"
RATE, PASSES, SHARE = "learning rate", "forward passes", "per cent of the budget"
"""Words of the axes that are logarithmic."""

COUNTED = ("step", "forward passes (training)")
"""Words of axes that begin at 0."""

DECADES = 1.5  # positive values that span more are drawn on a logarithmic scale
WORDS = {"labelFontSize": 10, "titleFontSize": 11, "titleFontWeight": "normal", "titlePadding": 4}
LINES = {"tickColor": "#dddddd", "domainColor": MUTED, "gridColor": "#e6e6e6", "labelLimit": 400}
LEGEND = {"orient": "bottom", "title": None, "columns": 7, "labelFontSize": 11, "labelLimit": 400}
LOOKS = {
    "font": "DejaVu Sans, Liberation Sans, Arial, sans-serif",
    "padding": 5,
    "axis": {**WORDS, **LINES},
    "legend": {**LEGEND, "symbolOpacity": 1, "symbolSize": 70, "symbolStrokeWidth": 1.5},
    "title": {"fontSize": 12, "fontWeight": "normal", "offset": 6},
    "view": {"stroke": None},
}
"""Vega-Lite's configuration of all figures."""

PAGE = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{title}</title><body><div id="figure"></div>
<script>{library}</script><script>vegaEmbed("#figure", {spec}, {{renderer: "svg"}});</script></body></html>
"""


@dataclass(frozen=True)
class Look:
    """How a method's lines and marks look; the defaults are those of a method that names.yaml has not."""

    colour: str = "#777777"
    mark: str = "circle"  # Vega's name or an SVG path
    dash: list[float] = field(default_factory=lambda: [1, 0])  # dash and gap, pixels


def look(method: str) -> Look:
    """The look of a method.

    A variant (`variant_name`) gets a place on RAMP: variants have an order.
    """
    name, _, place = method.partition("=")[0].partition(":")
    if place:
        i, of = map(int, place.split("/"))
        spread = (len(RAMP) - 1) / max(of - 1, 1)
        return Look(RAMP[round(i * spread) if of > 1 else -2], VARIANT_MARKS[i])
    return Look(**{key: value for key, value in METHODS.get(name, {}).items() if key != "name"})


@dataclass(frozen=True)
class Figure:
    """A chart with the numbers behind it."""

    name: str  # of the files, without ending
    title: str  # one line
    frame: pd.DataFrame  # see the module
    chart: Any  # Altair's
    notes: Sequence[str] = ()  # sentences below the figure


@cache
def library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, out of the pip package vl-convert-python."""
    path = CACHE / f"vega-embed-{version('vl-convert-python')}.js"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    import vl_convert  # here and below: slow to import

    text = str(vl_convert.javascript_bundle("window.vegaEmbed=vegaEmbed;"))
    with suppress(OSError), whole(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return text


def write(figure: Figure, directory: Path) -> list[Path]:
    """Write the csv; svg, png, pdf and interactive html unless it already holds these numbers; the paths."""
    import vl_convert

    rows = figure.frame.reindex(columns=COLUMNS)
    text = csv(rows.assign(method=rows["method"].map(plain)), "%.6g")
    table, *drawn = (directory / f"{figure.name}.{e}" for e in ("csv", "svg", "png", "pdf", "html"))
    complete = all(path.is_file() for path in (table, *drawn))
    if complete and table.read_text(encoding="utf-8") == text:
        return [table, *drawn]
    spec = json.dumps(specification(figure))
    svg = vl_convert.vegalite_to_svg(spec)
    page = PAGE.format(title=figure.title, library=library(), spec=spec.replace("</", "<\\/"))
    write_texts(directory, {drawn[0].name: svg, drawn[3].name: page})
    drawn[1].write_bytes(vl_convert.svg_to_png(svg, ppi=PPI))
    drawn[2].write_bytes(vl_convert.svg_to_pdf(svg))
    write_texts(directory, {table.name: text})  # last, after an interrupted drawing
    return [table, *drawn]


def draw(chart: Any, png: Path) -> None:
    """Write a chart as one picture, in the looks of all figures."""
    import vl_convert

    spec = {**chart.to_dict(validate=False), "config": LOOKS, "background": "white"}
    png.write_bytes(vl_convert.vegalite_to_png(json.dumps(spec), ppi=PPI))


def specification(figure: Figure, words: bool = True) -> dict[str, Any]:
    """Vega-Lite's specification of a figure, with its title and notes if `words`."""
    spec: dict[str, Any] = {**figure.chart.to_dict(validate=False), "config": LOOKS}
    if not words:
        return spec
    notes = [line for note in figure.notes for line in wrap(note, NOTE_CHARACTERS)]
    spec["title"] = {"text": figure.title, "anchor": "middle"}
    if not notes:
        return spec
    top = ("$schema", "config", "datasets")
    of_page: dict[str, Any] = {key: spec.pop(key) for key in top if key in spec}
    below = {"text": notes, "orient": "bottom", "anchor": "start", "fontSize": 9}
    return {**of_page, "vconcat": [spec], "title": {**below, "color": "#555555"}}


def points(
    method: str, x: Any, y: Any, best: int | None = None, low: Any = None, **said: Any
) -> pd.DataFrame:
    """The rows of one series, see the module; `best`: index of the point that is drawn larger."""
    known: dict[str, Any] = {"shape": "line", "series": "", "runs": "", "end": "", **said}
    known["method"] = method
    ends = {"low": low, "high": said.get("high")}
    frame = pd.DataFrame({"x": np.asarray(x, float), "y": np.asarray(y, float), **known, **ends})
    number = f"{known['method']}\0{known['series']}\0{known['shape']}\0{known['runs']}"
    return frame.assign(line=number, best=frame.index == (-1 if best is None else best))


def columns_of(panels: int) -> int:
    """Panels beside each other: those that leave least of the sheet empty."""
    if panels <= 3:
        return panels
    ideal = 2.9 if panels <= 8 else 3
    return min((2, 3, 4), key=lambda c: (-panels % c > 0.15 * panels, abs(c - ideal)))


def line_panels(
    frame: pd.DataFrame,
    view: tuple[float, float] | None = None,
    decades: bool = False,
    size: tuple[float, float] | None = None,
) -> Any:
    """A panel per `panel` and `quantity`, with one legend for the lines that are not named at their ends.

    All panels show the heights of `view`, without it each those of its own lines; with `decades` on a logarithmic scale
    where they span some. `size` is of a panel; None fills the sheet.
    """
    frame = _named(frame)
    columns = columns_of(frame.groupby(["panel", "quantity"]).ngroups)
    scales = looks(frame)
    width = WIDTH / columns - 65 - (7 if columns < 3 else 6) * int(frame["end"].str.len().max())
    charts = [
        _panel(rows, size or (width, 190 if columns > 1 else 260), scales, view, decades)
        for _, rows in frame.groupby(["panel", "quantity"], sort=False)
    ]
    return alt.concat(*charts, columns=columns, spacing=12)


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the method's name at the end of each line where a panel has few."""
    frame = frame.assign(label=frame["method"].map(method_label))
    lines = frame[frame["shape"].isin(["line", "level"]) & (frame["end"] == "")]
    counts = lines.groupby(["panel", "quantity"])[["label", "line"]].nunique()
    if counts.empty or counts.to_numpy().max() > FEW:
        return frame
    return frame.assign(end=frame["end"].where(~frame.index.isin(lines.index), frame["label"]))


def looks(frame: pd.DataFrame) -> dict[str, Any]:
    """Colour, mark and dashes of every method, for all panels; the legend has those without a text at their end."""
    named = frame.drop_duplicates("label").sort_values("method", key=lambda m: m.map(method_order))
    styles = [look(method) for method in named["method"]]
    domain = list(named["label"])
    lines = frame[frame["shape"].isin(["line", "level"])]
    lines = lines if len(lines) else frame
    needed = set(lines.loc[lines["end"] == "", "label"])
    values = [label for label in domain if label in needed]
    legend = alt.Legend(values=values) if values else None

    def scaled(kind: Any, of: list[Any]) -> Any:
        return kind("label:N", sort=None, legend=legend, scale=alt.Scale(domain=domain, range=of))

    return {
        "color": scaled(alt.Color, [style.colour for style in styles]),
        "shape": scaled(alt.Shape, [style.mark for style in styles]),
        "strokeDash": scaled(alt.StrokeDash, [style.dash for style in styles]),
    }


def _panel(
    rows: pd.DataFrame, size: tuple[float, float], scales: dict[str, Any], view: Any, decades: bool
) -> alt.LayerChart:
    """One pair of axes, from the back to the front."""
    first, lines = rows.iloc[0], rows[rows["shape"] == "line"]
    log = decades and _spans_decades(lines["y"])
    low, high = view or limits(rows, log)
    shown = rows.assign(y=rows["y"].where(rows["shape"] != "cross", rows["y"].clip(low, high)))

    def height(field: str = "y") -> alt.Y:
        scale = alt.Scale(type="log" if log else "linear", domain=[low, high], nice=False)
        return alt.Y(f"{field}:Q", title=first["quantity"], scale=scale, axis=_axis(log))

    rate = first["axis"] in (RATE, PASSES, SHARE)
    kind: Any = "log" if rate else "linear"
    zero = alt.Undefined if rate else first["axis"] in COUNTED  # a logarithmic axis has none
    wide = alt.Scale(type=kind, nice=False, zero=zero, padding=6)
    powers = first["axis"] == RATE
    ticks: dict[str, Any] = {}
    if rate:
        there = sorted(lines["x"].unique())
        marked = (
            there if first["axis"] == SHARE else _ticks(lines["x"], (1,) if powers else (1, 2, 5))
        )
        ticks = {"grid": False, "values": marked}
    across = alt.X("x:Q", title=first["axis"], scale=wide, axis=_axis(powers, **ticks))
    said = [alt.Tooltip("series:N", title=" "), alt.Tooltip("x:Q"), alt.Tooltip("y:Q")]
    detail = alt.Detail("line:N")

    def drawn(data: pd.DataFrame, **encoding: Any) -> alt.Chart:
        of = {"x": across, "y": height(), "detail": detail, "color": scales["color"], **encoding}
        chosen = {key: value for key, value in of.items() if value is not None}
        return alt.Chart(_short(data)).encode(**chosen)

    level, marks, cross = (shown[shown["shape"] == kind] for kind in ("level", "points", "cross"))
    dots = pd.concat([_some(lines), marks])
    dots, best = dots[dots["y"].between(low, high)], shown[shown["best"]]
    ends, banded = _ends(shown, low, high), lines[lines["low"].notna()]
    banded = banded[: len(banded) * (lines["line"].nunique() <= BANDS)]
    dot: dict[str, Any] = {"shape": scales["shape"], "tooltip": said}
    right = across if rate else alt.value(size[0])
    at_end = {"x": right, "text": alt.Text("end:N")}
    whiskers = {"y": height("low"), "y2": alt.Y2("high")}
    leader = {
        "x": right,
        "x2": alt.X2("x") if rate else right,
        "y": height("low"),
        "y2": alt.Y2("y"),
    }
    dash = {"x": None, "strokeDash": scales["strokeDash"]}
    layers: list[tuple[pd.DataFrame, dict[str, Any], Callable[[alt.Chart], alt.Chart]]] = [
        (banded, whiskers, lambda of: of.mark_area(opacity=0.15, clip=True)),
        (marks, whiskers, lambda of: of.mark_errorbar(ticks={"size": 5})),
        (level, dash, lambda of: of.mark_rule(strokeWidth=1.4)),
        (lines, {"order": alt.Order("x:Q")}, lambda of: of.mark_line(strokeWidth=1.6, clip=True)),
        (dots, dot, lambda of: of.mark_point(filled=True, opacity=1, size=32)),
        (best, dot, lambda of: of.mark_point(filled=True, opacity=1, size=110)),
        (cross, {"tooltip": said}, lambda of: of.mark_point(shape=CROSS, size=90, opacity=1)),
        (ends, leader, lambda of: of.mark_rule(xOffset=2, x2Offset=LEADER, strokeWidth=0.8)),
        (ends, at_end, lambda of: of.mark_text(align="left", dx=LEADER + 2, fontSize=9.5)),
    ]
    made = [mark(drawn(data, **encoding)) for data, encoding, mark in layers if len(data)]
    layered: alt.LayerChart = alt.layer(*made)  # type: ignore[assignment]
    return layered.properties(width=size[0], height=size[1], title=str(first["panel"]))


def _axis(log: bool, **more: Any) -> alt.Axis:
    return alt.Axis(format=".0e" if log else ",.6~g", tickCount=5, labelOverlap=True, **more)


def _ticks(values: pd.Series, of: tuple[int, ...]) -> list[float]:
    """The powers of ten between some values, times each number of `of`."""
    low, high = values[values > 0].min() * (1 - 1e-9), values.max() * (1 + 1e-9)
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks = [float(f"{number}e{power}") for power in powers for number in of]
    return [tick for tick in ticks if low <= tick <= high]


def limits(rows: pd.DataFrame, log: bool = False) -> tuple[float, float]:
    """The heights that a panel shows: those of its lines and bars, not of bands, with room around them."""
    bars = rows[rows["shape"] == "points"]
    values = np.concatenate([rows["y"], bars["low"], bars["high"]]).astype(float)
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    if not len(values):
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = float(values.min()), float(values.max())
    if log:
        return low / 1.5, high * 1.5
    room = 0.12 * (high - low) or 0.05 * abs(high) or 0.1
    return low - room, high + room


def _spans_decades(values: pd.Series) -> bool:
    return bool(len(values) and (values > 0).all() and np.ptp(np.log10(values)) > DECADES)


def _some(lines: pd.DataFrame) -> pd.DataFrame:
    """About eight points of each line, which get marks."""
    groups = lines.groupby("line", sort=False)
    every = (groups["x"].transform("size") // 8).clip(lower=1)
    return lines[groups.cumcount() % every == 0]


def _ends(rows: pd.DataFrame, low: float, high: float) -> pd.DataFrame:
    """The texts at the lines' ends, moved apart where lines end close together; `low`: where the line ends."""
    ends = rows[rows["end"].str.strip() != ""].sort_values("x").groupby("line", sort=False).tail(1)
    ends = ends.assign(y=ends["y"].clip(low, high)).sort_values("y")
    ends["low"] = ends["y"]
    apart = 0.068 * (high - low) * np.arange(len(ends))
    lifted = np.maximum.accumulate(ends["y"] - apart) + apart
    falling = np.minimum.accumulate((lifted - apart)[::-1].clip(upper=high - apart.max(initial=0)))
    return ends.assign(y=falling[::-1] + apart)


def _short(rows: pd.DataFrame) -> pd.DataFrame:
    """What a chart needs of some rows, in five digits, which is more than a screen shows."""
    kept = ["label", "line", "series", "x", "y", "low", "high", "end"]
    numbers = rows[["x", "y", "low", "high"]].astype(float).map(lambda v: float(f"{v:.5g}"))
    return rows[kept].assign(**numbers, line=pd.factorize(rows["line"])[0])
