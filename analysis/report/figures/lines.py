"""The figures of a comparison of lines: losses and differences from the base, accuracy over forward passes."""

from typing import Any

import altair as alt
import pandas as pd

from analysis.logs.history import History, evaluations
from analysis.paper.names import line_label
from analysis.report.figures.curves import band, mean_over
from analysis.report.figures.drawing import (
    PASSES,
    SHARE,
    WIDTH,
    Figure,
    line_panels,
    looks,
    points,
)
from analysis.select.comparison import BASE, SHARED, budget_of, evaluated

MOST_NAMED = 8  # lines of a figure with the memory of each
ROW = 15  # pixels of a line in the figure of differences
MINUS = "minus {} at 100 % of the budget"
BARS = (
    "Bars: intervals at the levels of Holm's correction; without 0: significant. References: 95 %."
)
SPREAD = "Lines: means over the seeds; shaded: from the smallest to the largest."
APART = 1.1  # memory of methods is named where it differs by this factor


def differences(title: str, frame: pd.DataFrame, what: tuple[str, str]) -> Figure:
    """The losses of the methods over the budget, and every line's difference at the end with its interval."""
    keys = evaluated(frame)
    shares = [share for share, key in SHARED.items() if key in keys]
    rows = frame.assign(method=[line.partition(",")[0] for line in frame["line"]])
    trained = rows[rows["passes"] > 0]
    own = trained[trained["line"] == trained["method"]]
    at: dict[str, Any] = {"panel": "losses", "quantity": what[0], "axis": SHARE}
    base = rows[rows["role"] == BASE]
    minus = MINUS.format(line_label(next(iter(base["line"]), "the base")))
    beside: dict[str, Any] = {"panel": minus, "quantity": "", "axis": what[1]}
    curves = [
        points(row["method"], shares, [row[key] for key in keys], series=row["line"], **at)
        for row in (own if len(own) else trained).to_dict("records")
    ]
    gaps = []
    differing = rows["low"].notna()
    for place, row in enumerate(rows[differing | (rows["role"] == BASE)].to_dict("records")):
        gap, half = (row["gap"], row["holm_half"]) if row["role"] != BASE else (0.0, 0.0)
        said = {**beside, "series": row["line"], "low": [gap - half], "high": [gap + half]}
        gaps.append(points(row["method"], [gap], [place], shape="points", **said))
    if not differing.any():
        everything = pd.concat(curves, ignore_index=True)
        return Figure("comparison", title, everything, line_panels(everything))
    everything = pd.concat([*curves, *gaps], ignore_index=True)
    height = max(170, ROW * len(gaps))
    named = pd.concat(curves).assign(end=" ")  # by the marks of the differences
    charts = line_panels(named, size=(WIDTH / 2 - 80, height)).concat
    beside_them = _intervals(pd.concat(gaps), what[1], height)
    chart = alt.hconcat(*charts, beside_them, spacing=20)
    return Figure("comparison", title, everything, chart, [BARS])


def over_passes(title: str, runs: pd.DataFrame, logged: History) -> list[Figure]:
    """Validation accuracy over forward passes, with each method's test accuracy; none where there are many methods."""
    own = runs[~runs["line"].str.contains(",") & (runs["measure"] == "accuracy")]
    if own["line"].nunique() > MOST_NAMED or not (own["steps"] > 0).any():
        return []
    found = []
    memory = own[own["steps"] > 0].groupby("line")["peak_gib"].mean()
    several = bool(memory.max() > APART * memory.min())
    unequal = own[own["steps"] > 0].groupby("line").size().nunique() > 1
    for line, its in own.groupby("line", sort=False):
        each = [evaluations(logged.one(run)) for run in its["run_id"]]
        whole = [one for one, ended in zip(each, its["status"], strict=True) if ended == "finished"]
        mean, steps = mean_over(whole or each, "forwards", "accuracy"), its["steps"].max()
        label = f"{line_label(str(line))}, test {100 * its['test_accuracy'].mean():.0f} %"
        label += f", {len(each)} seeds" * (bool(steps) and unequal)
        label += f", {len(each) - len(whole)} collapsed" * (len(whole) < len(each))
        label += f", {its['peak_gib'].mean():.1f} GiB" * several
        said: dict[str, Any] = {"panel": "", "quantity": "validation accuracy (%)", "axis": PASSES}
        said |= {"series": label, "end": label, "shape": "line" if steps else "level"}
        passes = mean["step"] * its["passes_per_step"].max()
        x = passes if steps else [budget_of(runs)] * len(mean)
        found.append(points(str(line), x, 100 * mean["accuracy"], **band(mean, 100), **said))
    rows = pd.concat(found, ignore_index=True)
    shaded = [SPREAD] * bool(rows["low"].notna().any())
    return [Figure("passes", title, rows, line_panels(rows), shaded)]


def _intervals(gaps: pd.DataFrame, unit: str, height: float) -> alt.LayerChart:
    """Differences as marks on bars with caps, named at the left."""
    rows = gaps.assign(
        name=[line_label(line) for line in gaps["series"]],
        label=[line_label(method) for method in gaps["method"]],
    )
    rows = rows[["name", "label", "method", "end", "shape", "x", "low", "high"]]
    at = alt.Y("name:N", sort=None, title=None, axis=alt.Axis(labelLimit=260, grid=True))
    base = alt.Chart(rows.drop(columns="method")).encode(y=at)
    scales = {key: scale.legend(None) for key, scale in looks(rows).items()}
    bar = base.mark_errorbar(ticks={"size": 7}).encode(
        x=alt.X("low:Q", title=unit), x2="high:Q", color=scales["color"]
    )
    dot = base.mark_point(filled=True, opacity=1, size=45).encode(
        x="x:Q", color=scales["color"], shape=scales["shape"], tooltip=["name", "x", "low", "high"]
    )
    zero = alt.Chart(pd.DataFrame({"x": [0.0]})).mark_rule(color="#999999").encode(x="x:Q")
    size = {"width": WIDTH / 2 - 130, "height": height}
    layered: alt.LayerChart = alt.layer(zero, bar, dot)  # type: ignore[assignment]
    return layered.properties(title=gaps["panel"].iloc[0], **size)
