"""The figure of a study: validation curves of the chosen runs."""

from itertools import product
from typing import Any

import numpy as np

from analysis.report.figures.curves import FORWARDS, STEP, band
from analysis.report.figures.drawing import Figure, Panel, Series, around
from analysis.report.figures.histories import mean_over
from analysis.report.style import look
from analysis.select.study_runs import MAIN, Setting, Study

AXES = {"step": STEP, "forwards": FORWARDS}
HEIGHTS = {"loss": ("validation loss (nats)", 1), "accuracy": ("validation accuracy (%)", 100)}


def curves_figure(study: Study) -> Figure | None:
    """A column per precision, a row per quantity and axis; None where no method was evaluated twice."""
    found: dict[str, dict[str, list[Any]]] = {}
    for precision, method in product(study.precisions, study.methods):
        runs = list(study.runs(Setting(method, precision)).values())
        if runs and min(len(study.curve(run["run_id"])) for run in runs) > 1:
            found.setdefault(precision, {})[method] = runs
    if not found:
        return None
    facet = {key: str(study.part(MAIN).iloc[0][key]) for key in ("model", "task")}
    panels: list[Panel] = []
    for (column, (label, factor)), (axis, words) in product(HEIGHTS.items(), AXES.items()):
        lines = {
            precision: [_line(study, *item, axis, column, factor) for item in by_method.items()]
            for precision, by_method in found.items()
        }
        ylim = around(np.concatenate([s.y for row in lines.values() for s in row]))
        for precision, row in lines.items():
            here = facet | {"precision": precision}
            panels.append(Panel(precision, words, label, row, here, ylim=ylim))
    counts = {len(runs) for by_method in found.values() for runs in by_method.values()}
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    notes = [
        f"Each method at its chosen learning rate. Lines: mean over {seeds} seeds, "
        "shaded: from the smallest to the largest. Panels of a quantity share their vertical axis.",
        *study.lacks(MAIN),
    ]
    title = f"{study.name}: validation over steps and over forward passes"
    return Figure("curves", title, panels, notes, len(panels) // 4)


def _line(
    study: Study, method: str, runs: list[Any], axis: str, column: str, factor: int
) -> Series:
    mean = mean_over([study.curve(run["run_id"]) for run in runs], axis, column)
    words = f"{look(method).label}, lr {runs[0]['lr']:g}, mean of {len(runs)} seeds"
    ids = " ".join(run["run_id"] for run in runs)
    x, y = mean[axis].to_numpy(float), factor * mean[column].to_numpy(float)
    return Series(method, x, y, words, runs=ids, **band(mean, factor))
