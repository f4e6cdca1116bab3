"""A panel as data for Vega-Lite: page.js makes the specification, which is the same for every panel."""

import math
from functools import cache
from typing import Any

import numpy as np
import vl_convert

from analysis.paper.names import plain
from analysis.report.figures.drawing import Figure, Panel, Series
from analysis.report.style import LOOKS, MUTED, RAMP, look

MARKERS = {
    "o": "circle", "s": "square", "^": "triangle-up", "v": "triangle-down", "D": "diamond", "P": "cross",
    "X": "cross", "*": "triangle-right", "<": "triangle-left", ">": "triangle-right", "h": "circle", "p": "square",
    "1": "triangle-down", "2": "triangle-up",
}  # fmt: skip
VARIABLES = {
    **{colour: f"var(--ramp-{i})" for i, colour in enumerate(RAMP)},
    **{style.colour: f"var(--m-{name})" for name, style in LOOKS.items()},
    MUTED: "var(--muted)",
}
EXPORTS = "window.vegaEmbed=vegaEmbed;window.vega=vega;window.vegaLite=vegaLite;"


@cache
def library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, out of the pip package vl-convert-python."""
    return vl_convert.javascript_bundle(EXPORTS)


def panel_data(panel: Panel) -> dict[str, Any]:
    """The panel as plain lists and texts, without what is as usual."""
    bottom, top = panel.limits
    data = {
        "x": _axis(panel.xlabel, panel.xlog, panel.xticks, None),
        "y": _axis(panel.ylabel, panel.ylog, panel.yticks, (bottom, top)),
        "s": [_series(s, bottom, top) for s in panel.series],
    }
    return data | ({"w": panel.width} if any(s.shape == "bar" for s in panel.series) else {})


def legend(figure: Figure) -> list[dict[str, Any]]:
    """The legend's entries: words, colour, dashes; the method that a filter dims."""
    entries = [{"words": look(m).label, "method": plain(m), **_looks(m)} for m in figure.methods]
    return entries + [{"words": words, "sign": sign} for sign, words in figure.signs.items()]


def _series(s: Series, bottom: float, top: float) -> dict[str, Any]:
    y = np.asarray(s.y, float)
    if s.shape == "cross":
        y = np.clip(y, bottom, top)
    data: dict[str, Any] = {"m": plain(s.method), "k": s.shape, "t": s.words, **_looks(s.method)}
    data |= {"x": _short(s.x), "y": _short(y)}
    if s.low is not None:
        data |= {"l": _short(s.low), "u": _short(s.high)}
    if s.hollow:
        data["h"] = 1
    if s.best is not None:
        data["b"] = s.best
    if s.end.strip():
        data["e"] = s.end
    return data


def _looks(method: str) -> dict[str, Any]:
    style = look(method)
    dashes = [] if isinstance(style.line, str) else [round(1.4 * part, 1) for part in style.line[1]]
    return {
        "c": VARIABLES.get(style.colour, style.colour),
        "d": dashes,
        "p": MARKERS.get(style.marker, "circle"),
    }


def _axis(label: str, log: bool, ticks: Any, domain: tuple[float, float] | None) -> dict[str, Any]:
    axis: dict[str, Any] = {"t": label}
    if log:
        axis["log"] = 1
    if ticks is not None:
        axis["ticks"] = [[position, text] for position, text in ticks.items()]
    if domain is not None:
        axis["domain"] = _short(domain)
    return axis


def _short(values: Any) -> list[float | int | None]:
    """Four digits, which is more than a screen shows; None for what is not a number."""
    short: list[float | int | None] = []
    for value in np.asarray(values, float).tolist():
        rounded = float(f"{value:.4g}") if math.isfinite(value) else None
        short.append(int(rounded) if rounded is not None and rounded == int(rounded) else rounded)
    return short
