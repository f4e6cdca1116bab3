"""A figure before it is drawn: panels of series. `paint` draws it with matplotlib, `page.vega` with Vega-Lite.

A series is the points of one line, bar or mark, with the words that name it. Everything that a reader can see is in
it, so that the csv beside a figure is made of the series alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pandas as pd

from analysis.paper.names import method_order, plain
from analysis.report.style import look

SHAPES = ("line", "points", "cross", "level", "bar")


class Ends(TypedDict, total=False):
    """The ends of a series' band or whiskers, as `Series` takes them."""

    low: Any
    high: Any


@dataclass(frozen=True)
class Series:
    """Points that belong together.

    Attributes:
        method: a method, or a variant of one (`style.variant_name`): decides colour, marker and dashes.
        x: horizontal positions.
        y: heights; of a `cross`, an infinite one lies at the panel's edge.
        words: what a reader is told who points at it.
        shape: one of SHAPES; a `level` is a horizontal line at y[0].
        low: lower ends of the band around a line, of the whiskers around points, or of bars; None without.
        high: upper ends.
        weight: 1 for what the panel is about, less for what stands behind it.
        hollow: whether marks are not filled: the paper's own numbers.
        best: index of the point that is drawn larger; None without.
        end: text behind the last point.
        runs: ids of the runs, joined by spaces.
    """

    method: str
    x: Any
    y: Any
    words: str = ""
    shape: str = "line"
    low: Any = None
    high: Any = None
    weight: float = 1.0
    hollow: bool = False
    best: int | None = None
    end: str = ""
    runs: str = ""


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: short; stands above the axes.
        xlabel: words of the horizontal axis.
        ylabel: words of the vertical axis.
        series: in the order of drawing.
        facet: `model`, `task`, `precision`, where the panel has one: what the page filters by.
        xlog: whether the horizontal axis is logarithmic.
        ylog: whether the vertical axis is.
        xticks: position -> text; None for numbers.
        yticks: the same.
        ylim: the heights that are shown; None for all.
        width: of a bar.
    """

    title: str
    xlabel: str
    ylabel: str
    series: Sequence[Series]
    facet: Mapping[str, str] = field(default_factory=dict)
    xlog: bool = False
    ylog: bool = False
    xticks: Mapping[float, str] | None = None
    yticks: Mapping[float, str] | None = None
    ylim: tuple[float, float] | None = None
    width: float = 0.8

    @property
    def limits(self) -> tuple[float, float]:
        """The heights that are shown."""
        if self.ylim is not None:
            return self.ylim
        heights = [
            np.asarray(v, float) for s in self.series for v in (s.y, s.low, s.high) if v is not None
        ]
        bars = [0.0] if any(s.shape == "bar" for s in self.series) else []
        return around(np.concatenate([*heights, bars]), self.ylog)


@dataclass(frozen=True)
class Figure:
    """Panels with one legend.

    Attributes:
        name: of the files, without ending.
        title: one line.
        panels: at least one.
        notes: sentences below the figure.
        columns: panels beside each other on paper.
        height: of a panel, inches.
        best: what the larger mark of a line means.
        hollow: what a hollow mark means.
        data: what the csv holds, if it is more than the points.
    """

    name: str
    title: str
    panels: Sequence[Panel]
    notes: Sequence[str] = ()
    columns: int = 3
    height: float = 2.05
    best: str = "best step"
    hollow: str = "the paper"
    data: pd.DataFrame | None = None

    @property
    def methods(self) -> list[str]:
        """The methods and variants of the legend; those that a panel names at its line ends need no entry."""
        found = {s.method for panel in self.panels for s in panel.series if not s.end}
        return sorted((m for m in found if look(m).label), key=method_order)

    @property
    def signs(self) -> dict[str, str]:
        """The signs of the legend that occur: marker -> meaning."""
        series = [s for panel in self.panels for s in panel.series]
        there = {
            ("x", "collapsed"): any(s.shape == "cross" for s in series),
            ("o", self.best): any(s.best is not None for s in series),
            ("hollow", self.hollow): any(s.hollow for s in series),
        }
        return {sign: words for (sign, words), occurs in there.items() if occurs}

    @property
    def frame(self) -> pd.DataFrame:
        """Every point of every series: what the csv holds."""
        return (
            pd.concat(list(self._frames()), ignore_index=True) if self.data is None else self.data
        )

    def _frames(self) -> Iterator[pd.DataFrame]:
        for panel in self.panels:
            for s in panel.series:
                known = {
                    "panel": panel.title,
                    "quantity": panel.ylabel,
                    "method": plain(s.method),
                    "series": s.words,
                }
                points = {"shape": s.shape, "x": s.x, "y": s.y, "low": s.low, "high": s.high}
                yield pd.DataFrame({**known, **points, "runs": s.runs})


def around(values: Any, log: bool = False, share: float = 0.08) -> tuple[float, float]:
    """The smallest and the largest finite value with room around them."""
    values = np.asarray(values, float)
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    if not len(values):
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = float(values.min()), float(values.max())
    if log:
        room = max(high / low, 1.05) ** share
        return low / room, high * room
    room = share * (high - low) or 0.05 * abs(high) or 0.1
    return (0.0 if low == 0 else low - room), high + room


def write(figure: Figure, directory: Path) -> list[Path]:
    """Write the csv, and the png and pdf unless the csv already holds these numbers; the three paths."""
    from analysis.report.figures.paint import save

    directory.mkdir(parents=True, exist_ok=True)
    table, png, pdf = (directory / f"{figure.name}.{ending}" for ending in ("csv", "png", "pdf"))
    text = figure.frame.to_csv(index=False, lineterminator="\n", float_format="%.6g")
    drawn = png.is_file() and pdf.is_file() and table.is_file()
    if not drawn or table.read_text(encoding="utf-8") != text:
        save(figure, png, pdf)
        table.write_text(
            text, encoding="utf-8", newline="\n"
        )  # last: an interrupted drawing is drawn again
    return [table, png, pdf]
