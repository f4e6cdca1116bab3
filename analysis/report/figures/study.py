"""The figures of a study: validation curves of the chosen runs, and where half precision hurts."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from analysis.paper.names import named
from analysis.report.figures.curves import FORWARDS, STEP, band
from analysis.report.figures.drawing import Figure, Panel, Series, around
from analysis.report.figures.histories import mean_over
from analysis.report.style import look
from analysis.select import study_roundings as factorial
from analysis.select.study_runs import MAIN, ROUNDINGS, Setting, Study

AXES = {"step": STEP, "forwards": FORWARDS}
HEIGHTS = {"loss": ("validation loss (nats)", 1), "accuracy": ("validation accuracy (%)", 100)}
EXACT = dict(zip(factorial.ALONE.values(), ("mezo_adam", "hizoo", "bszo", "mezo"), strict=True))
"""What is exact -> the method whose colour and marker it has."""
SPREAD = 0.72  # of a method's row that is drawn in


def curves_figure(study: Study) -> Figure | None:
    """A column per precision, a row per quantity and axis; None where no method was evaluated twice."""
    found: dict[str, dict[str, list[Any]]] = {}
    for precision, method in product(study.precisions, study.methods):
        runs = list(study.runs(Setting(method, precision)).values())
        if runs and min(len(study.curve(run["run_id"])) for run in runs) > 1:
            found.setdefault(precision, {})[method] = runs
    if not found:
        return None
    panels = []
    for (column, (label, factor)), (axis, words) in product(HEIGHTS.items(), AXES.items()):
        row = {
            precision: [
                _line(study, m, runs, axis, column, factor) for m, runs in by_method.items()
            ]
            for precision, by_method in found.items()
        }
        ylim = around(np.concatenate([s.y for lines in row.values() for s in lines]))
        panels += [
            Panel(precision, words, label, lines, _facet(study, precision), ylim=ylim)
            for precision, lines in row.items()
        ]
    counts = {len(runs) for by_method in found.values() for runs in by_method.values()}
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    notes = [
        f"Each method at its chosen learning rate. Lines: mean over {seeds} seeds, "
        "shaded: from the smallest to the largest. Panels of a quantity share their vertical axis.",
        *study.lacks(MAIN),
    ]
    title = f"{study.name}: validation over steps and over forward passes"
    return Figure("curves", title, panels, notes, len(panels) // 4)


def _facet(study: Study, precision: str) -> dict[str, str]:
    first = study.part(MAIN).iloc[0]
    return {"model": str(first["model"]), "task": str(first["task"]), "precision": precision}


def _line(
    study: Study, method: str, runs: list[Any], axis: str, column: str, factor: int
) -> Series:
    mean = mean_over([study.curve(run["run_id"]) for run in runs], axis, column)
    words = f"{look(method).label}, lr {runs[0]['lr']:g}, mean of {len(runs)} seeds"
    ids = " ".join(run["run_id"] for run in runs)
    x, y = mean[axis].to_numpy(float), factor * mean[column].to_numpy(float)
    return Series(method, x, y, words, runs=ids, **band(mean, factor))


def roundings_figure(study: Study, frame: pd.DataFrame) -> Figure | None:
    """A panel per quantity and precision, a row per method; None without a number in half precision."""
    if frame.empty:
        return None
    data = frame[(frame["kind"] == factorial.LEVEL) & (frame["rates"] == factorial.OWN)]
    half = data[(data["what"] != factorial.FLOAT32) & data["estimate"].notna()]
    if half.empty:
        return None
    precisions = [p for p in frame["precision"].unique() if p in set(half["precision"])]
    panels = []
    for quantity in factorial.QUANTITIES:
        better, unit = ("lower", "nats") if quantity == factorial.LOSS else ("higher", "%")
        for precision in precisions:
            rows = data[(data["quantity"] == quantity) & (data["precision"] == precision)]
            series: list[Series] = []
            ticks = {}
            for i, (method, levels) in enumerate(rows.groupby("method", sort=False)):
                ticks[float(i)] = look(str(method)).label
                series += _exactness(levels.set_index("what")["estimate"], i, ticks[i])
            xlabel = f"{quantity} ({unit}), {better} is better"
            more: dict[str, Any] = {"yticks": ticks, "ylim": (-0.5, len(ticks) - 0.5)}
            panels.append(Panel(precision, xlabel, "", series, _facet(study, precision), **more))
    notes = [
        "Bars start where everything is rounded, as released, and end where one thing, or everything, is exact: the "
        f"longest says which rounding matters. Grey: {factorial.FLOAT32}. Means over the seeds, each at its own "
        "learning rate.",
        *study.lacks(ROUNDINGS),
    ]
    title = f"{study.name}: where half precision hurts"
    return Figure("roundings", title, panels, notes, len(precisions), 2.9, data=frame)


def _exactness(values: pd.Series, row: int, label: str) -> list[Series]:
    """A bar from the level with everything rounded to each exactness, and fp32."""
    start = float(values.get(factorial.NOTHING, float("nan")))
    series = []
    for i, (words, method) in enumerate(EXACT.items()):
        end = float(values.get(words, float("nan")))
        height = row - SPREAD / 2 + SPREAD * (i + 0.5) / len(EXACT)
        if end == end:
            ends, heights = [start, end], [height, height]
            series.append(Series(named(method, words), ends, heights, f"{label}, {words}"))
    full = float(values.get(factorial.FLOAT32, float("nan")))
    if full == full:
        said = f"{label}, {factorial.FLOAT32}"
        series.append(Series("reference", [full], [row], said, "points"))
    return series
