"""The figure of the roundings: per method what each exactness moves, from all rounded to all exact, beside fp32."""

from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.report.figures.drawing import Drawing, Panel
from analysis.report.style import INK, MUTED, RULE, look
from analysis.select.study_roundings import (
    EVERYTHING,
    FACTORS,
    FLOAT32,
    LEVEL,
    LOSS,
    NOTHING,
    OWN,
    QUANTITIES,
    Roundings,
    name,
)
from analysis.select.study_sweeps import MAIN, ROUNDINGS

SIGNS = {
    f"{FACTORS[0]} exact": ("^", "#4FA3DC"),
    f"{FACTORS[1]} exact": ("s", "#1B7F3B"),
    f"{FACTORS[2]} exact": ("D", "#D55E00"),
    name(EVERYTHING): ("o", "#222222"),
}
"""What is exact -> marker and colour; the marker says the same as the colour."""
ROW, SPREAD = 1.0, 0.72  # height of a method's row, and of what is drawn in it
HEIGHT = 2.9  # inches of a panel


def roundings_drawing(roundings: Roundings) -> Drawing | None:
    """A panel per quantity and precision, a row per method; None without a number in half precision."""
    frame = roundings.frame
    if frame.empty:
        return None
    data = frame[(frame["kind"] == LEVEL) & (frame["rates"] == OWN)]
    columns = ["precision", "method", "quantity", "what", "lr", "estimate", "seeds_low"]
    data = data[[*columns, "seeds_high", "n", "status"]].reset_index(drop=True)
    if data.loc[data["what"] != FLOAT32, "estimate"].isna().all():
        return None
    first = roundings.study.part(MAIN).iloc[0]
    there = set(data.loc[data["estimate"].notna() & (data["what"] != FLOAT32), "precision"])
    precisions = [precision for precision in roundings.precisions if precision in there]
    panels = []
    for quantity in QUANTITIES:
        for precision in precisions:
            rows = data[(data["quantity"] == quantity) & (data["precision"] == precision)]
            facet = {key: str(first[key]) for key in ("model", "task")} | {"precision": precision}
            panels.append(Panel(precision, partial(_draw, rows=rows, quantity=quantity), facet))
    handles = [
        _sign("|", MUTED, "all rounded, as released", markersize=9),
        *(_sign(marker, colour, words) for words, (marker, colour) in SIGNS.items()),
        _sign("*", INK, FLOAT32, markersize=7, markerfacecolor="white"),
    ]
    notes = [
        "Bars start where everything is rounded and end where one thing, or everything, is exact: the longest says "
        "which rounding matters. Means over the seeds, each at its own learning rate, chosen by validation.",
        *(f"{line}." for line in roundings.study.lacks(ROUNDINGS)),
    ]
    title = f"{roundings.study.name}: where half precision hurts"
    return Drawing("roundings", title, panels, handles, frame, notes, len(precisions), HEIGHT)


def _sign(marker: str, colour: str, label: str, **looks: object) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="", label=label, **looks)  # type: ignore[arg-type]


def _draw(axes: Axes, rows: pd.DataFrame, quantity: str) -> None:
    methods = list(dict.fromkeys(rows["method"]))
    for i, method in enumerate(methods):
        of_method = rows[rows["method"] == method].set_index("what")["estimate"]
        _draw_method(axes, of_method, i * ROW)
    axes.set_yticks([i * ROW for i in range(len(methods))], [look(m).label for m in methods])
    axes.set_ylim(len(methods) * ROW - ROW / 2, -ROW / 2)  # the first method on top
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    for i in range(1, len(methods)):
        axes.axhline(i * ROW - ROW / 2, color=RULE, linewidth=0.6, zorder=0)
    axes.margins(x=0.08)
    better = "lower is better" if quantity == LOSS else "higher is better"
    unit = "nats" if quantity == LOSS else "%"
    axes.set_xlabel(f"{quantity} ({unit}), {better}")


def _draw_method(axes: Axes, values: pd.Series, centre: float) -> None:
    """The level with everything rounded as a rule, a bar from it to each exactness, fp32 as a star."""
    start = float(values.get(name(NOTHING), float("nan")))
    top, bottom = centre - SPREAD / 2, centre + SPREAD / 2
    axes.plot([start, start], [top, bottom], color=MUTED, linewidth=1.2, zorder=2)
    for i, (words, (marker, colour)) in enumerate(SIGNS.items()):
        height = top + SPREAD * (i + 0.5) / len(SIGNS)
        end = float(values.get(words, float("nan")))
        axes.plot([start, end], [height, height], color=colour, linewidth=1.6, zorder=3)
        axes.plot([end], [height], color=colour, marker=marker, linestyle="", zorder=4)
    full = float(values.get(FLOAT32, float("nan")))
    axes.plot(
        [full], [centre], color=INK, marker="*", markersize=7, markerfacecolor="white", zorder=5
    )
