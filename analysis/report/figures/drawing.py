"""A figure before it is on paper: panels, legend, the numbers behind it, and what a reader must know.

`write` lays the panels out on a page and leaves the same bytes for the same numbers. As drawing takes
longer than reading a cached frame, a png and pdf that were drawn from these very numbers stay.
"""

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from analysis.report.style import RC, WIDTH

PANEL_HEIGHT = 2.05  # inches
LEGEND_ROW, NOTE_ROW = 0.17, 0.125  # inches
NOTE_CHARACTERS = 128  # that fit into the width
STAMP = "Drawn from"  # the png's text field that holds the stamp
HERE = Path(__file__).parent
SOURCES = [*sorted(HERE.glob("*.py")), HERE.parent / "style.py"]
"""What any drawing depends on; the module that draws a panel counts, too."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: short; stands above the axes.
        draw: draws on the axes and labels them.
        facet: `model`, `task`, `precision`, where the panel has one: what a page filters by.
    """

    title: str
    draw: Callable[[Axes], None]
    facet: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Drawing:
    """A figure.

    Attributes:
        name: of the files, without ending.
        title: one line.
        panels: at least one.
        legend: handles with labels.
        data: the numbers behind it, as the csv holds them.
        notes: sentences below the figure.
        columns: panels beside each other on a page.
        height: of a panel, inches.
    """

    name: str
    title: str
    panels: Sequence[Panel]
    legend: Sequence[Artist]
    data: pd.DataFrame
    notes: Sequence[str] = ()
    columns: int = 3
    height: float = PANEL_HEIGHT


def write(drawing: Drawing, directory: Path) -> list[Path]:
    """Write the csv, and the png and pdf unless they show these numbers already; the three paths."""
    table, png, pdf = (directory / f"{drawing.name}.{ending}" for ending in ("csv", "png", "pdf"))
    text = drawing.data.to_csv(index=False, lineterminator="\n", float_format="%.6g")
    table.write_text(text, encoding="utf-8", newline="\n")
    stamp = _stamp(drawing, text)
    if not (pdf.is_file() and png.is_file() and _stamp_of(png) == stamp):
        with mpl.rc_context(RC):
            figure = page(drawing)
            figure.savefig(pdf, metadata={"Creator": None, "Producer": None, "CreationDate": None})
            figure.savefig(png, metadata={"Software": None, STAMP: stamp})
    return [table, png, pdf]


def page(drawing: Drawing) -> Figure:
    """All panels on one page, the legend and the notes below; to be called within RC."""
    columns = min(drawing.columns, len(drawing.panels))
    rows = -(-len(drawing.panels) // columns)
    notes = [line for note in drawing.notes for line in wrap(note, NOTE_CHARACTERS)]
    legend_rows = -(-len(drawing.legend) // _legend_columns(drawing))
    below = legend_rows * LEGEND_ROW + len(notes) * NOTE_ROW + 0.1
    height = rows * drawing.height + below + 0.2
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.get_layout_engine().set(rect=(0, below / height, 1, 1 - below / height))  # type: ignore[union-attr,call-arg]
    figure.suptitle(drawing.title)
    all_axes = figure.subplots(rows, columns, squeeze=False).flat
    for i, axes in enumerate(all_axes):
        if i >= len(drawing.panels):
            axes.set_visible(False)
            continue
        axes.set_title(drawing.panels[i].title)
        drawing.panels[i].draw(axes)
    top_of_notes = len(notes) * NOTE_ROW + 0.05
    if drawing.legend:
        figure.legend(
            handles=list(drawing.legend),
            loc="lower center",
            bbox_to_anchor=(0.5, top_of_notes / height),
            ncols=_legend_columns(drawing),
        )
    for i, line in enumerate(notes):
        place = (top_of_notes - (i + 0.8) * NOTE_ROW) / height
        figure.text(0.01, place, line, fontsize=6, color="#555555")
    return figure


def _legend_columns(drawing: Drawing) -> int:
    longest = max((len(str(handle.get_label())) for handle in drawing.legend), default=1)
    return max(1, min(len(drawing.legend), int(110 / (longest + 7))))


def _stamp(drawing: Drawing, text: str) -> str:
    """What the drawing depends on: the numbers, the words, this code and matplotlib's version."""
    parts = [text, drawing.title, *drawing.notes, *(panel.title for panel in drawing.panels)]
    parts += [str(handle.get_label()) for handle in drawing.legend]
    sources = dict.fromkeys([*SOURCES, *(_source(panel) for panel in drawing.panels)])
    parts += [mpl.__version__, *(source.read_text(encoding="utf-8") for source in sources)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _source(panel: Panel) -> Path:
    """The file of the function that draws a panel."""
    draw: Any = panel.draw
    while isinstance(draw, partial):
        draw = draw.func
    return Path(inspect.getfile(draw))


def _stamp_of(png: Path) -> str | None:
    try:
        with Image.open(png) as image:
            return image.info.get(STAMP)
    except OSError:  # no image: a write was cut short
        return None
