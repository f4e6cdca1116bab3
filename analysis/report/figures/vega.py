"""Figures as Vega-Lite: one specification of a panel, for the page and, beside others, for png and pdf.

A series stays a row of lists, which the specification itself flattens: the page holds a hundred panels.
"""

import json
import math
import struct
import zlib
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from analysis.paper.names import plain
from analysis.report.figures.drawing import Figure, Panel, Series, around
from analysis.report.style import LOOKS, MUTED, RAMP, look

Spec = dict[str, Any]
EXPORTS = "window.vegaEmbed=vegaEmbed;window.vega=vega;window.vegaLite=vegaLite;"
VARIABLES = {
    **{colour: f"var(--ramp-{i})" for i, colour in enumerate(RAMP)},
    **{style.colour: f"var(--m-{name})" for name, style in LOOKS.items()},
    "#222222": "var(--ink)",
    MUTED: "var(--muted)",
    "#dddddd": "var(--rule)",
    "#ffffff": "var(--card)",
}
"""Colour on paper -> the page's, of which the dark scheme has another."""

WIDTH, PPI = 504, 200
"""Points of a page's text, 7 inches, and pixels per inch of a png."""

NOTE_CHARACTERS = 140  # that fit into the width
CROSS = "M-.6,-.6L.6,.6M-.6,.6L.6,-.6"
SIGNS = {
    "x": "×",
    "o": "larger mark",
}  # of those in the legend of the page; notes say what is hollow
COUNTED = ("step", "forward passes (training)")
"""Words of axes of whole numbers from 0."""

SHOWN = "only != '' && datum.of != only ? 0.07 : 1"
DOT = "(datum.k == 'points' || datum.k == 'line') && (datum.j - 1) % datum.every == 0"


@cache
def library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, out of the pip package vl-convert-python."""
    import vl_convert  # here and below: slow to import

    return str(vl_convert.javascript_bundle(EXPORTS))


def config(paper: bool = False) -> Spec:
    """Fonts and lines of all panels."""
    ink, muted, rule = (_colour(name, paper) for name in ("#222222", MUTED, "#dddddd"))
    size = {"labelFontSize": 7 if paper else 10.5, "labelLimit": 400, "labelColor": ink}
    lines = {"tickColor": rule, "domainColor": muted, "gridColor": rule, "gridWidth": 0.5}
    words = {"titleFontSize": 7.5 if paper else 11, "titleFontWeight": "normal", "titleColor": ink}
    symbols = {"symbolOpacity": 1, "symbolSize": 40, "symbolStrokeWidth": 0}
    return {
        "font": "DejaVu Sans, Liberation Sans, Arial, sans-serif" if paper else "inherit",
        "axis": {**size, **lines, **words, "titlePadding": 3},
        "legend": {**size, **symbols, "orient": "bottom", "title": None},
        "title": {"color": ink, "fontSize": 8, "fontWeight": "normal", "offset": 4},
        "view": {"stroke": None},
    }


def render(spec: Spec, png: Path, pdf: Path | None = None) -> None:
    """Write a specification as pictures, in the looks of all figures; a pixel is a point."""
    import vl_convert

    text = json.dumps({"config": config(paper=True), "background": "white", "padding": 5, **spec})
    png.write_bytes(_compressed(vl_convert.vegalite_to_png(text, ppi=PPI)))
    if pdf is not None:
        pdf.write_bytes(vl_convert.vegalite_to_pdf(text))


def write(figure: Figure, directory: Path) -> list[Path]:
    """Write the csv, and the png and pdf unless the csv already holds these numbers; the three paths."""
    directory.mkdir(parents=True, exist_ok=True)
    table, png, pdf = (directory / f"{figure.name}.{ending}" for ending in ("csv", "png", "pdf"))
    text = figure.frame.to_csv(index=False, lineterminator="\n", float_format="%.6g")
    drawn = png.is_file() and pdf.is_file() and table.is_file()
    if not drawn or table.read_text(encoding="utf-8") != text:
        render(on_paper(figure), png, pdf)
        table.write_text(text, encoding="utf-8", newline="\n")  # last, after an interrupted drawing
    return [table, png, pdf]


def _compressed(png: bytes) -> bytes:
    """A png of a third of the size: vl_convert hardly compresses."""
    at = png.index(b"IDAT")
    (size,) = struct.unpack(">I", png[at - 4 : at])
    pixels = b"IDAT" + zlib.compress(zlib.decompress(png[at + 4 : at + 4 + size]), 9)
    length, check = (struct.pack(">I", n) for n in (len(pixels) - 4, zlib.crc32(pixels)))
    return png[: at - 4] + length + pixels + check + png[at + 8 + size :]


def on_paper(figure: Figure) -> Spec:
    """All panels of a figure, with legend and notes."""
    columns = min(figure.columns, len(figure.panels))
    signs = [f"{SIGNS[s]}: {words}" for s, words in figure.signs.items() if s in SIGNS]
    notes = ["; ".join(signs) + "."] * bool(signs) + list(figure.notes)
    panels = []
    for panel in figure.panels:
        named = max((len(words) for words in (panel.yticks or {}).values()), default=0)
        ends = max((len(s.end.strip()) for s in panel.series), default=0)
        width = WIDTH / columns - (15 + 4 * named if named else 42) - 3.6 * ends
        spec = panel_spec(panel, (width, 72 * figure.height - 42), figure)
        panels.append({"title": {"text": panel.title, "anchor": "middle"}, **spec})
    below: Spec = {"text": [line for note in notes for line in wrap(note, NOTE_CHARACTERS)]}
    below |= {"orient": "bottom", "anchor": "start", "fontSize": 6, "color": "#555555"}
    title = {"text": figure.title, "fontSize": 9, "anchor": "middle"}
    drawn = {"title": title, "concat": panels, "columns": columns, "spacing": 8}
    only = {"params": [{"name": "only", "value": ""}]}
    return {**only, "title": below, "vconcat": [drawn], "spacing": 6}


def on_page(panel: Panel) -> Spec:
    """The panel for the page, where a filter sets `only` and words answer the pointer."""
    spec = panel_spec(panel, (320, 190))
    spec["layer"] += _pointer(panel)
    spec |= {"params": [{"name": "only", "value": ""}], "autosize": {"type": "pad"}, "padding": 3}
    return spec | {"background": None, "usermeta": {"words": [s.words for s in panel.series]}}


def legend(figure: Figure) -> list[Spec]:
    """The page's legend: words, colour and dashes; the method that a filter dims."""
    entries = [
        {"words": style.label, "method": plain(m), "c": _colour(style.colour), "d": style.dash}
        for m in figure.methods
        for style in [look(m)]
    ]
    return entries + [{"words": words, "sign": sign} for sign, words in figure.signs.items()]


def panel_spec(panel: Panel, size: tuple[float, float], of: Figure | None = None) -> Spec:
    """The specification of a panel, for the page or for the paper with the legend of a figure."""
    values = [_series(i, s, panel) for i, s in enumerate(panel.series)]
    for i, end in _ends(panel).items():
        values[i] |= {"e": panel.series[i].end, "ey": end}
    return {
        "width": size[0],
        "height": size[1],
        "data": {"values": values},
        "transform": [
            {"flatten": ["x", "y", "l", "u"]},
            {"window": [{"op": "row_number", "as": "j"}], "groupby": ["i"]},
            {"calculate": SHOWN, "as": "shown"},
            {"calculate": "datum.shown * 0.16", "as": "faint"},
        ],
        "encoding": {
            "x": _axis(panel.xlabel, panel.xlog, panel.xticks, _across(panel)),
            "y": _axis(panel.ylabel, panel.ylog, panel.yticks, _short(panel.limits), reverse=True),
            "detail": {"field": "i"},
            "opacity": _plain("shown"),
        },
        "layer": _layers(panel, size, of),
    }


def _layers(panel: Panel, size: tuple[float, float], figure: Figure | None) -> list[Spec]:
    """What is drawn, from the back to the front."""
    series, paper = panel.series, figure is not None
    kinds, banded = {s.shape for s in series}, any(s.low is not None for s in series)
    point, stroke, font = (15, 1.4, 5.5) if paper else (28, 1.6, 9)
    small: Spec = {"fontSize": font}
    bar = {"size": 0.88 * panel.width * size[0] / max(len(panel.xticks or "1"), 1)}
    card, muted = ({"value": _colour(name, paper)} for name in ("#ffffff", MUTED))
    colour, dash, shape = _scales(panel, figure)
    fill = {"condition": {"test": "datum.h", **card}, **colour}
    y = _axis(panel.ylabel, panel.ylog, panel.yticks, _short(panel.limits), reverse=True)
    band: Spec = {"y": {**y, "field": "l"}, "y2": {"field": "u"}}
    low, high = panel.limits
    words: Spec = {"dy": -4} if len(series) <= 8 else {"angle": 270, "align": "left", "dx": 3}
    words["fontSize"] = font if len(series) <= 16 else 0.8 * font
    loose = {"clip": False, "strokeWidth": 1}

    def layer(there: bool, test: str, kind: str, mark: Spec, **encoding: Any) -> list[Spec]:
        mark = {"type": kind, "clip": True, **mark}
        return [{"transform": [{"filter": test}], "mark": mark, "encoding": encoding}] * there

    def of(kind: str) -> tuple[bool, str]:
        return kind in kinds, f"datum.k == '{kind}'"

    ends = any(s.end.strip() for s in series), "datum.j == datum.n && isValid(datum.e)"
    best = any(s.best is not None for s in series), "datum.b == datum.j"
    dots = True, f"{DOT} && datum.y >= {low:.6g} && datum.y <= {high:.6g} && datum.p"
    lines = of("line")
    marks: Spec = {"stroke": colour, "fill": fill, "shape": shape}
    valid, at_x = " && isValid(datum.l)", {"field": "x"}
    at_end: Spec = {"x": {"value": size[0]}, "y": {**y, "field": "ey"}, "text": {"field": "e"}}
    return [
        *layer(banded, lines[1] + valid, "area", {}, fill=colour, opacity=_plain("faint"), **band),
        *layer(banded, of("points")[1] + valid, "rule", {}, stroke=colour, **band),
        *layer(*of("level"), "rule", {}, x=None, stroke=colour, strokeDash=dash),
        *layer(*of("bar"), "bar", {**bar, "orient": "vertical"}, fill=fill, stroke=colour),
        *layer(*of("bar"), "text", {**words, "clip": False}, text={"field": "said"}, fill=muted),
        *layer(*lines, "line", {"strokeWidth": stroke}, stroke=colour, strokeDash=dash, order=at_x),
        *layer(*dots, "point", {**loose, "size": point}, **marks),
        *layer(*best, "point", {**loose, "size": 3.2 * point}, stroke=card, fill=colour, shape=shape),
        *layer(*of("cross"), "point", {**loose, "shape": CROSS, "size": 3 * point}, stroke=colour),
        *layer(*ends, "text", {"align": "left", "dx": 4, **small, "clip": False}, fill=muted, **at_end),
    ]  # fmt: skip


def _scales(panel: Panel, figure: Figure | None = None) -> tuple[Spec, Spec, Spec]:
    """Colour, dashes and shape of every method; all panels of a figure share them, and a legend."""
    panels = [panel] if figure is None else figure.panels
    methods = list(dict.fromkeys(s.method for one in panels for s in one.series))
    styles = [look(method) for method in methods]
    named = figure.methods if figure is not None else []
    labels = json.dumps({method: look(method).label for method in named})
    shown = {"values": named, "columns": 6, "labelExpr": f"({labels})[datum.value]"}
    looks = {
        "c": [_colour(style.colour, figure is not None) for style in styles],
        "d": [style.dash or [1, 0] for style in styles],
        "p": [style.shape or "stroke" for style in styles],
    }

    def scale(key: str) -> Spec:
        own = {"field": "m", "type": "nominal", "scale": {"domain": methods, "range": looks[key]}}
        return {**own, "legend": shown if named and key != "d" else None}

    return scale("c"), scale("d"), scale("p")


def _pointer(panel: Panel) -> list[Spec]:
    """What answers the pointer: the nearest point, with its series and values."""
    select = {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"}
    seen = {"condition": {"param": "near", "empty": False, "value": 1}, "value": 0}
    said: list[Spec] = [{"field": "i", "type": "quantitative", "format": "d", "title": "series"}]
    for name, label, ticks in (("x", panel.xlabel, panel.xticks), ("y", panel.ylabel, panel.yticks)):  # fmt: skip
        if label and ticks is None:
            said.append({"field": name, "title": label, "format": ",.4~g"})
    near = [{"name": "near", "select": select}]
    test = {"filter": "datum.shown > 0.2 && datum.k != 'level'"}
    colour = _scales(panel)[0]
    encoding = {"fill": colour, "opacity": seen, "tooltip": said}
    there = any(s.shape != "level" for s in panel.series)
    mark = {"type": "circle", "size": 60}
    return [{"transform": [test], "params": near, "mark": mark, "encoding": encoding}] * there


def _axis(label: str, log: bool, ticks: Any, limits: Any, reverse: bool = False) -> Spec:
    scale: Spec = {"type": "log"} if log else {"type": "linear", "zero": label in COUNTED}
    scale |= {"domain": limits, "nice": False} if limits else {}
    axis: Spec = {"title": label or None, "labelOverlap": ticks is None}
    axis["labelExpr"] = f"format(datum.value, '{'.0e' if log else ',.6~g'}')"
    if ticks is not None:  # named rows read from the top
        names = json.dumps({f"{at:g}": words for at, words in ticks.items()})
        axis |= {"values": list(ticks), "labelExpr": f"({names})[datum.value]", "grid": False}
        scale["reverse"] = reverse
    else:
        axis |= {"values": _decades(*limits)} if log else {"tickCount": 5}
    return {"field": "y" if reverse else "x", "type": "quantitative", "scale": scale, "axis": axis}


def _across(panel: Panel) -> list[float | None]:
    """The horizontal limits; empty where the data's own are right."""
    if panel.xticks is not None:
        return [min(panel.xticks) - 0.5, max(panel.xticks) + 0.5]
    xs = [np.asarray(s.x, float) for s in panel.series if s.shape != "level"]
    return _short(around(np.concatenate(xs), True, 0.04)) if panel.xlog else []


def _decades(low: float, high: float) -> list[float]:
    """The powers of ten between two values, with twice and five times each where they are few."""
    digits = (1,) if high / low > 100 else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [digit * 10.0**power for power in powers for digit in digits]
    return [at for at in found if low <= at <= high]


def _series(i: int, s: Series, panel: Panel) -> Spec:
    y = np.asarray(s.y, float)
    shown = np.clip(y, *panel.limits) if s.shape == "cross" else y
    data: Spec = {"i": i, "m": s.method, "of": plain(s.method), "k": s.shape, "n": len(y)}
    data |= {"x": _short(s.x), "y": _short(shown), "l": _short(s.low), "u": _short(s.high)}
    data |= {"p": int(look(s.method).shape != ""), "h": int(s.hollow)}
    data["every"] = 1 if s.shape == "points" else max(1, len(y) // 7)
    if s.shape == "bar":
        data["said"] = f"{y[0]:.1f}" if y[0] < 100 else f"{y[0]:,.0f}"
    return data | ({"b": s.best + 1} if s.best is not None else {})


def _ends(panel: Panel) -> dict[int, float]:
    """Heights of the texts at the lines' ends, moved apart where lines end close together."""
    bottom, top = panel.limits
    height, found = bottom - (top - bottom), {}
    named = [(np.asarray(s.y)[-1], i) for i, s in enumerate(panel.series) if s.end.strip()]
    for last, i in sorted(named):
        height = max(float(np.clip(last, bottom, top)), height + (top - bottom) * 0.065)
        found[i] = height
    return found


def _plain(field: str) -> Spec:
    return {"field": field, "type": "quantitative", "scale": None}


def _colour(name: str, paper: bool = False) -> str:
    return name if paper else VARIABLES.get(name, name)


def _short(values: Any) -> list[float | None]:
    """Four digits, which is more than a screen shows; None for what is not a number."""
    found = [] if values is None else np.asarray(values, float).tolist()
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in found]
