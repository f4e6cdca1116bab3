"""Draws a figure with matplotlib: all panels on one page, the legend and the notes below."""

from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Page
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator, StrMethodFormatter

from analysis.report.figures.drawing import Figure, Panel, Series
from analysis.report.style import MUTED, RC, WIDTH, look

LEGEND_ROW, NOTE_ROW = 0.17, 0.125  # heights, inches
NOTE_CHARACTERS = 128  # that fit into the width
MARKS = 8  # markers along a line
SMALL, TINY = 5.5 / 8, 4.5 / 8  # of the font's size
BAND, WHISKER = 0.15, 0.6  # opacities
COUNTED = ("step", "forward passes (training)")  # words of axes of whole numbers from 0


def save(figure: Figure, png: Path, pdf: Path) -> None:
    """Write both files; the same numbers give the same bytes."""
    with mpl.rc_context(fname=RC):
        drawn = page(figure)
        drawn.savefig(pdf, metadata={"Creator": None, "Producer": None, "CreationDate": None})
        drawn.savefig(png, metadata={"Software": None})


def page(figure: Figure) -> Page:
    """The figure, drawn; to be called within RC."""
    columns = min(figure.columns, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    notes = [line for note in figure.notes for line in wrap(note, NOTE_CHARACTERS)]
    entries = [_method_entry(figure, method) for method in figure.methods]
    entries += [_sign_entry(sign, words) for sign, words in figure.signs.items()]
    longest = max((len(str(entry.get_label())) for entry in entries), default=1)
    across = max(1, min(len(entries), int(110 / (longest + 7))))
    top_of_notes = len(notes) * NOTE_ROW + 0.05
    below = -(-len(entries) // across) * LEGEND_ROW + top_of_notes + 0.05
    height = rows * figure.height + below + 0.2
    drawn = Page(figsize=(WIDTH, height), layout="constrained")
    drawn.get_layout_engine().set(rect=(0, below / height, 1, 1 - below / height))  # type: ignore[union-attr,call-arg]
    drawn.suptitle(figure.title)
    all_axes = drawn.subplots(rows, columns, squeeze=False).flat
    for i, axes in enumerate(all_axes):
        axes.set_visible(i < len(figure.panels))
        if i < len(figure.panels):
            paint(axes, figure.panels[i])
    if entries:
        place = (0.5, top_of_notes / height)
        drawn.legend(handles=entries, loc="lower center", bbox_to_anchor=place, ncols=across)
    for i, line in enumerate(notes):
        drawn.text(
            0.01, (top_of_notes - (i + 0.8) * NOTE_ROW) / height, line, fontsize=6, color="#555555"
        )
    return drawn


def paint(axes: Axes, panel: Panel) -> None:
    """Draw a panel on axes."""
    axes.set(title=panel.title, xlabel=panel.xlabel, ylabel=panel.ylabel)
    if panel.xlog:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    if panel.ylog:
        axes.set_yscale("log")
    limits = panel.limits
    for series in panel.series:
        _paint_series(axes, series, panel)
    axes.set_ylim(limits[::-1] if panel.yticks else limits)  # named rows read from the top
    for axis, ticks in ((axes.xaxis, panel.xticks), (axes.yaxis, panel.yticks)):
        if ticks is not None:
            axis.set_ticks(list(ticks), list(ticks.values()))
            axis.set_minor_locator(NullLocator())
            axis.grid(visible=False)
    if panel.xticks is None and not panel.xlog and panel.xlabel in COUNTED:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    _write_ends(axes, panel)


def _paint_series(axes: Axes, s: Series, panel: Panel) -> None:
    style, x, y = look(s.method), np.asarray(s.x, float), np.asarray(s.y, float)
    colour: Any = {"color": style.colour}
    if s.shape == "level":
        axes.axhline(y[0], linestyle=style.line, linewidth=1.2, **colour)
    elif s.shape == "bar":
        looks: Any = {"facecolor": "none" if s.hollow else style.colour, "edgecolor": style.colour}
        bars = axes.bar(x, y, 0.88 * panel.width, linewidth=1.0, **looks)
        texts = [f"{value:.1f}" if value < 100 else f"{value:,.0f}" for value in y]
        among = len(panel.series)
        size = (SMALL if among <= 16 else TINY) * mpl.rcParams["font.size"]
        looks = {"fontsize": size, "rotation": 0 if among <= 8 else 90, "color": MUTED}
        axes.bar_label(bars, texts, padding=1.5, **looks)
    elif s.shape == "cross":
        heights = np.clip(y, *panel.limits)
        looks = {"markersize": 6, "markeredgewidth": 1.6, "clip_on": False, "zorder": 5}
        axes.plot(x, heights, marker="x", linestyle="", **looks, **colour)
    else:
        points = s.shape == "points"
        if s.low is not None and points:
            axes.vlines(x, s.low, s.high, linewidth=0.9, alpha=WHISKER, **colour)
        elif s.low is not None:
            axes.fill_between(x, s.low, s.high, alpha=BAND, linewidth=0, **colour)
        line: Any = "" if points else (0, (3, 2)) if s.hollow else style.line
        face = "white" if s.hollow else style.colour
        looks = {"linestyle": line, "marker": style.marker, "markerfacecolor": face}
        axes.plot(x, y, markevery=max(1, len(x) // MARKS), **looks, **colour)
        if s.best is not None:
            looks = {"markersize": 7, "markeredgecolor": "white", "markeredgewidth": 0.8}
            axes.plot(x[s.best], y[s.best], marker=style.marker, zorder=4, **looks, **colour)


def _write_ends(axes: Axes, panel: Panel) -> None:
    """Each line's end text at the right edge, moved apart where lines end close together."""
    bottom, top = panel.limits
    least = (top - bottom) * 0.065
    height = bottom - least
    ends = [(float(np.clip(s.y[-1], bottom, top)), s) for s in panel.series if s.end and len(s.y)]
    for end, s in sorted(ends, key=lambda pair: pair[0]):
        height = max(end, height + least)
        place, size = (1.01, height), SMALL * mpl.rcParams["font.size"]
        axes.annotate(s.end, place, xycoords=("axes fraction", "data"), va="center", color=MUTED,
                      fontsize=size, annotation_clip=False)  # fmt: skip


def _method_entry(figure: Figure, method: str) -> Line2D | Patch:
    style = look(method)
    mine = [s for panel in figure.panels for s in panel.series if s.method == method]
    if all(s.shape == "bar" for s in mine):
        return Patch(color=style.colour, label=style.label)
    line: Any = "" if all(s.shape in ("points", "cross") for s in mine) else style.line
    return Line2D(
        [], [], color=style.colour, linestyle=line, marker=style.marker, label=style.label
    )


def _sign_entry(sign: str, words: str) -> Line2D:
    looks = {"x": {"marker": "x", "markeredgewidth": 1.6}, "o": {"marker": "o", "markersize": 7}}
    hollow = {"marker": "o", "markerfacecolor": "white"}
    return Line2D([], [], color=MUTED, linestyle="", label=words, **looks.get(sign, hollow))  # type: ignore[arg-type]
