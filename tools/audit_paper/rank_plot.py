"""The figure of mean ranks."""

from typing import Any

import pandas as pd

from analysis.report.figures.drawing import Figure, Panel, Series
from analysis.report.style import look


def ranks_figure(ranks: pd.DataFrame) -> Figure:
    """Mean ranks of the methods, a panel per family of cells.

    Args:
        ranks: `family`, `method`, `average_rank`, `cells`, `critical_difference` (NaN where Friedman's test does not
            reject, or the cells are too few).
    """
    notes = [
        "Rank 1 is the best of a cell; a collapse is the last. The bar is Nemenyi's critical difference, drawn from "
        "the best method: methods whose dots it covers do not differ from it at 5 %. Cells are taken as independent; "
        "they share models, data and grids, so that it is too short."
    ]
    families = ranks.groupby("family", sort=False)
    panels = [_rank_panel(str(family), rows) for family, rows in families]
    title = "The paper's numbers: mean rank over model × task cells"
    return Figure("rank_plot", title, panels, notes, 2)


def _rank_panel(family: str, rows: pd.DataFrame) -> Panel:
    ordered = rows.sort_values("average_rank", kind="stable").to_dict("records")
    best, distance = ordered[0]["average_rank"], ordered[0]["critical_difference"]
    series, ticks, top = [], {}, len(ordered) - 0.4
    if pd.notna(distance):
        ends, words = [best, best + distance], f"critical difference {distance:.2f}"
        band: dict[str, Any] = {"low": [-0.7] * 2, "high": [top] * 2}
        series.append(Series("reference", ends, [-0.7, -0.7], words, **band))
    for place, row in enumerate(ordered):
        ticks[float(place)] = label = look(row["method"]).label
        words = f"{label}: mean rank {row['average_rank']:.2f}"
        series.append(Series(row["method"], [row["average_rank"]], [place], words, "points"))
    title = f"{family}: {ordered[0]['cells']} cells"
    return Panel(title, "mean rank", "", series, yticks=ticks, ylim=(-1.1, top))
