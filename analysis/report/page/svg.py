"""A panel as SVG: painted as on paper, in the page's colours and fonts, each series with its words and its method."""

import re
from dataclasses import replace
from io import StringIO
from typing import Any

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.figure import Figure as Drawing

from analysis.paper.names import plain
from analysis.report.figures.drawing import Figure, Panel
from analysis.report.figures.paint import SERIES, paint
from analysis.report.style import LOOKS, MUTED, RAMP, RC, look

SIZE = (4.2, 2.5)  # inches
FONT = 10.0  # points: as large as the page's small words where a panel is as wide as a telephone
WEB: dict[Any, Any] = {
    "svg.fonttype": "none",  # words stay words, in the page's font
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    **dict.fromkeys(("font.size", "axes.labelsize", "xtick.labelsize", "ytick.labelsize"), FONT),
}
UNNAMED = dict.fromkeys(("Creator", "Date", "Format", "Type"))
COLOURS = {
    **{colour.lower(): f"var(--ramp-{i})" for i, colour in enumerate(RAMP)},
    **{style.colour.lower(): f"var(--m-{name})" for name, style in LOOKS.items()},
    MUTED: "var(--muted)",
    "#222222": "var(--ink)",
    "#dddddd": "var(--rule)",
    "#ffffff": "var(--card)",
}


def panel_svg(panel: Panel, number: int) -> Markup:
    """The panel without its title; `number`, which no other panel of the page has, keeps ids apart."""
    written = StringIO()
    with mpl.rc_context(fname=RC), mpl.rc_context(WEB | {"svg.hashsalt": str(number)}):
        drawing = Drawing(figsize=SIZE, layout="constrained")
        paint(drawing.subplots(), replace(panel, title=""))
        drawing.savefig(written, format="svg", metadata=UNNAMED)
    text = written.getvalue()
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text[text.index("<svg") :])
    text = re.sub(r' (?:d|x|y|transform)="[^"]*"', _tenths, text)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda found: COLOURS.get(found[0], found[0]), text)

    def opened(found: re.Match[str]) -> str:
        """A group without its id, which other panels have, too; that of a series says what it is."""
        if not found[1].startswith(SERIES):
            return "<g>"
        series = panel.series[int(found[1].removeprefix(SERIES))]
        words = series.words + (f": {series.y[0]:.4g}" if len(series.y) == 1 else "")
        return f'<g data-method="{escape(plain(series.method))}"><title>{escape(words)}</title>'

    return Markup(re.sub(r'<g id="([^"]*)">', opened, text))


def _tenths(found: re.Match[str]) -> str:
    """An attribute with its coordinates in tenths of a point."""
    return re.sub(r"\.(\d)\d+", r".\1", found[0])


def legend(figure: Figure) -> list[dict[str, Any]]:
    """The legend's entries: words, colour and dashes; the method that a filter dims, or a sign."""
    entries: list[dict[str, Any]] = []
    for method in figure.methods:
        style = look(method)
        dashes = [] if isinstance(style.line, str) else [1.4 * part for part in style.line[1]]
        colour = COLOURS.get(style.colour.lower(), style.colour)
        words = {"words": style.label, "method": plain(method)}
        entries.append(words | {"colour": colour, "dashes": dashes})
    return entries + [{"words": words, "sign": sign} for sign, words in figure.signs.items()]
