"""The figures of a study: validation curves of the chosen runs, and where half precision hurts."""

import pandas as pd

from analysis.report.figures.curves import FORWARDS, STEP
from analysis.report.figures.drawing import Ends, Figure, Panel, Series, around
from analysis.report.figures.histories import mean_over
from analysis.report.style import look, named
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
from analysis.select.study_runs import Setting, Study
from analysis.select.study_sweeps import MAIN, ROUNDINGS

AXES = {"step": STEP, "forwards": FORWARDS}
HEIGHTS = {"loss": ("validation loss (nats)", 1), "accuracy": ("validation accuracy (%)", 100)}
EXACT = dict(
    zip(
        [*(f"{factor} exact" for factor in FACTORS), name(EVERYTHING)],
        ("mezo_adam", "hizoo", "bszo", "mezo"),
        strict=True,
    )
)
"""What is exact -> the method whose colour and marker it has."""
SPREAD = 0.72  # of a method's row that is drawn in


def curves_figure(study: Study) -> Figure | None:
    """A column per precision, a row per quantity and axis; None where no method was evaluated twice."""
    found = {}
    for precision in study.precisions:
        for method in study.methods:
            runs = list(study.runs(Setting(method, precision)).values())
            curves = [study.curve(run["run_id"]) for run in runs]
            if curves and min(map(len, curves)) > 1:
                found[precision, method] = runs, curves
    if not found:
        return None
    first = study.part(MAIN).iloc[0]
    panels = []
    for column, (label, factor) in HEIGHTS.items():
        for axis, words in AXES.items():
            row = []
            for precision in dict.fromkeys(precision for precision, _ in found):
                series = [
                    _line(m, *found[p, m], axis, column, factor) for p, m in found if p == precision
                ]
                facet = {
                    "model": str(first["model"]),
                    "task": str(first["task"]),
                    "precision": precision,
                }
                row.append(Panel(precision, words, label, series, facet))
            heights = pd.concat([pd.Series(s.y) for panel in row for s in panel.series])
            panels += [
                Panel(p.title, words, label, p.series, p.facet, ylim=around(heights)) for p in row
            ]
    counts = sorted({len(runs) for runs, _ in found.values()})
    notes = [
        "Each method at its chosen learning rate. "
        f"Lines: mean over {' to '.join(map(str, {counts[0], counts[-1]}))} seeds, "
        "shaded: from the smallest to the largest. Panels of a quantity share their vertical axis.",
        *(f"{line}." for line in study.lacks(MAIN)),
    ]
    title = f"{study.name}: validation over steps and over forward passes"
    return Figure("curves", title, panels, notes, len(panels) // 4)


def _line(method: str, runs: list, curves: list, axis: str, column: str, factor: int) -> Series:
    mean = mean_over(curves, axis, column)
    ends: Ends = {}
    if "low" in mean:
        ends = {"low": factor * mean["low"].to_numpy(), "high": factor * mean["high"].to_numpy()}
    words = f"{look(method).label}, lr {runs[0]['lr']:g}, mean of {len(runs)} seeds"
    ids = " ".join(run["run_id"] for run in runs)
    return Series(
        method,
        mean[axis].to_numpy(float),
        factor * mean[column].to_numpy(float),
        words,
        runs=ids,
        **ends,
    )


def roundings_figure(roundings: Roundings) -> Figure | None:
    """A panel per quantity and precision, a row per method; None without a number in half precision."""
    frame = roundings.frame
    if frame.empty:
        return None
    data = frame[(frame["kind"] == LEVEL) & (frame["rates"] == OWN)]
    half = data[(data["what"] != FLOAT32) & data["estimate"].notna()]
    if half.empty:
        return None
    first = roundings.study.part(MAIN).iloc[0]
    precisions = [
        precision for precision in roundings.precisions if precision in set(half["precision"])
    ]
    panels = []
    for quantity in QUANTITIES:
        better, unit = ("lower", "nats") if quantity == LOSS else ("higher", "%")
        for precision in precisions:
            rows = data[(data["quantity"] == quantity) & (data["precision"] == precision)]
            methods = list(dict.fromkeys(rows["method"]))
            series = []
            for i, method in enumerate(methods):
                series += _exactness(
                    rows[rows["method"] == method].set_index("what")["estimate"],
                    i,
                    look(method).label,
                )
            facet = {
                "model": str(first["model"]),
                "task": str(first["task"]),
                "precision": precision,
            }
            ticks = {float(i): look(m).label for i, m in enumerate(methods)}
            xlabel = f"{quantity} ({unit}), {better} is better"
            panels.append(
                Panel(
                    precision,
                    xlabel,
                    "",
                    series,
                    facet,
                    yticks=ticks,
                    ylim=(-0.5, len(methods) - 0.5),
                )
            )
    notes = [
        "Bars start where everything is rounded, as released, and end where one thing, or everything, is exact: the "
        f"longest says which rounding matters. Grey: {FLOAT32}. Means over the seeds, each at its own learning rate.",
        *(f"{line}." for line in roundings.study.lacks(ROUNDINGS)),
    ]
    return Figure(
        "roundings",
        f"{roundings.study.name}: where half precision hurts",
        panels,
        notes,
        len(precisions),
        2.9,
        data=frame,
    )


def _exactness(values: pd.Series, row: int, label: str) -> list[Series]:
    """A bar from the level with everything rounded to each exactness, and fp32."""
    start = float(values.get(name(NOTHING), float("nan")))
    series = []
    for i, (words, method) in enumerate(EXACT.items()):
        end, height = (
            float(values.get(words, float("nan"))),
            row - SPREAD / 2 + SPREAD * (i + 0.5) / len(EXACT),
        )
        if end == end:
            series.append(
                Series(named(method, words), [start, end], [height, height], f"{label}, {words}")
            )
    full = float(values.get(FLOAT32, float("nan")))
    if full == full:
        series.append(Series("reference", [full], [row], f"{label}, {FLOAT32}", "points"))
    return series
