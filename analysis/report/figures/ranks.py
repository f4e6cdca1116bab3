"""Mean ranks of the methods over model × task cells, with Nemenyi's critical difference where it applies."""

from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator

from analysis.report.figures.drawing import Drawing, Panel
from analysis.report.style import INK, MUTED, look


def rank_plot(ranks: pd.DataFrame) -> Drawing | None:
    """One panel per family of cells; None without any.

    Args:
        ranks: `family`, `method`, `average_rank`, `cells`, `friedman_p`, `critical_difference` (NaN where Friedman's
            test does not reject, or the cells are too few).
    """
    if ranks.empty:
        return None
    panels = [
        Panel(f"{family}: {int(rows['cells'].iloc[0])} cells", partial(_draw, rows=rows), {})
        for family, rows in ranks.groupby("family", sort=False)
    ]
    notes = [
        "Rank 1 is the best of a cell; a collapse is the last. The bar is Nemenyi's critical difference, drawn from "
        "the best method: methods whose dots it covers do not differ from it at 5 %. Cells are taken as independent; "
        "they share models, data and grids, so that it is too short.",
    ]
    title = "The paper's numbers: mean rank over model × task cells"
    return Drawing("rank_plot", title, panels, [], ranks, notes, columns=2)


def _draw(axes: Axes, rows: pd.DataFrame) -> None:
    ordered = rows.sort_values("average_rank", kind="stable").reset_index(drop=True)
    best = float(ordered["average_rank"].iloc[0])
    distance = float(ordered["critical_difference"].iloc[0])
    if pd.notna(distance):
        axes.axvspan(best, best + distance, color=MUTED, alpha=0.14, linewidth=0)
        axes.plot([best, best + distance], [-0.75, -0.75], color=INK, linewidth=2.2)
    for row in ordered.to_dict("records"):
        style, place = look(str(row["method"])), list(ordered["method"]).index(row["method"])
        axes.plot([1, row["average_rank"]], [place, place], color=style.colour, linewidth=0.8)
        (dot,) = axes.plot(
            [row["average_rank"]],
            [place],
            linestyle="",
            marker=style.marker,
            markersize=6,
            color=style.colour,
        )
        dot.set_gid(f"line|{row['method']}|{style.label}: mean rank {row['average_rank']:.2f}")
    axes.set_yticks(range(len(ordered)), [look(str(method)).label for method in ordered["method"]])
    axes.set_ylim(len(ordered) - 0.4, -1.1)
    axes.set_xlim(0.9, len(ordered) + 0.1)
    axes.xaxis.set_major_locator(MultipleLocator(1))
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="mean rank")
