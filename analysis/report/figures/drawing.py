"""A figure before it is drawn: panels of series. `vega` draws it, on paper and for the page.

A series is the points of one line, bar or mark, with the words that name it. Everything that a reader can see is in
it, so that the csv beside a figure is made of the series alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.paper.names import method_order, plain
from analysis.report.style import look


@dataclass(frozen=True)
class Series:
    """Points that belong together."""

    # a method, or a variant of one (`style.variant_name`): decides colour, marker and dashes
    method: str
    x: Any  # horizontal positions
    y: Any  # heights; of a `cross`, an infinite one lies at the panel's edge
    words: str = ""  # what a reader is told who points at it
    shape: str = "line"  # or points, cross, bar, level: a horizontal line at y[0]
    # lower ends of the band around a line, or of the whiskers around points; None without
    low: Any = None
    high: Any = None  # upper ends
    hollow: bool = False  # whether marks are not filled: the paper's own numbers
    best: int | None = None  # index of the point that is drawn larger; None without
    end: str = ""  # text behind the last point
    runs: str = ""  # ids of the runs, joined by spaces


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str  # short; stands above the axes
    xlabel: str  # words of the horizontal axis
    ylabel: str  # words of the vertical axis
    series: Sequence[Series]  # in the order of drawing
    # `model`, `task`, `precision`, where the panel has one: what the page filters by
    facet: Mapping[str, str] = field(default_factory=dict)
    xlog: bool = False  # whether the horizontal axis is logarithmic
    ylog: bool = False  # whether the vertical axis is
    xticks: Mapping[float, str] | None = None  # position -> text; None for numbers
    yticks: Mapping[float, str] | None = None  # the same
    ylim: tuple[float, float] | None = None  # the heights that are shown; None for all
    width: float = 0.8  # of a bar

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
    """Panels with one legend."""

    name: str  # of the files, without ending
    title: str  # one line
    panels: Sequence[Panel]  # at least one
    notes: Sequence[str] = ()  # sentences below the figure
    columns: int = 3  # panels beside each other on paper
    best: str = "best step"  # what the larger mark of a line means
    height: float = 2.05  # inches of a panel on paper

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
            ("hollow", "the paper"): any(s.hollow for s in series),
        }
        return {sign: words for (sign, words), occurs in there.items() if occurs}

    @property
    def frame(self) -> pd.DataFrame:
        """Every point of every series: what the csv holds."""
        parts = []
        for panel in self.panels:
            for s in panel.series:
                known = {"panel": panel.title, "quantity": panel.ylabel, "method": plain(s.method)}
                points = {"shape": s.shape, "x": s.x, "y": s.y, "low": s.low, "high": s.high}
                parts.append(pd.DataFrame({**known, "series": s.words, **points, "runs": s.runs}))
        return pd.concat(parts, ignore_index=True)


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
