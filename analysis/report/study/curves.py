"""Validation loss and accuracy of a study's methods at their chosen learning rates, over steps and forward passes."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.report.figures.curves import method_handles, name_line, whole_numbers
from analysis.report.figures.drawing import Drawing, Panel
from analysis.report.style import look
from analysis.select.study_runs import Study
from analysis.select.study_sweeps import MAIN

AXES = {"step": "step", "forwards": "forward passes (training)"}
QUANTITIES = {"loss": "validation loss (nats)", "accuracy": "validation accuracy (%)"}
SHADE = 0.13


def curves_frame(study: Study) -> pd.DataFrame:
    """A row per method, precision, quantity and evaluation that all finished seeds have.

    Returns:
        Columns `precision`, `method`, `lr`, `quantity`, `step`, `forwards`, `mean`, `low`, `high` (over seeds), `n`.
    """
    rows = []
    for precision in study.precisions:
        for method in study.methods:
            runs = list(study.runs(method, precision).values())
            curves = [study.curve(run["run_id"]) for run in runs]
            for quantity in QUANTITIES if runs else ():
                rows += [
                    {"precision": precision, "method": method, "lr": runs[0]["lr"]} | row
                    for row in _over_seeds(curves, quantity)
                ]
    columns = ["precision", "method", "lr", "quantity", "step", "forwards"]
    return pd.DataFrame(rows, columns=[*columns, "mean", "low", "high", "n"])


def _over_seeds(curves: list[pd.DataFrame], quantity: str) -> list[dict[str, Any]]:
    scale = 100 if quantity == "accuracy" else 1
    by_step = pd.concat(curves).groupby("step")
    rows = []
    for step, values in by_step:
        numbers = scale * values[quantity].to_numpy(float)
        if len(values) == len(curves) and np.isfinite(numbers).all():
            rows.append(
                {
                    "quantity": quantity,
                    "step": int(step),  # type: ignore[arg-type]
                    "forwards": float(values["forwards"].mean()),
                    "mean": float(numbers.mean()),
                    "low": float(numbers.min()),
                    "high": float(numbers.max()),
                    "n": len(values),
                }
            )
    return rows


def curves_drawing(study: Study) -> Drawing | None:
    """A column per precision, a row per quantity and axis; None where no method was evaluated twice."""
    data = curves_frame(study)
    sizes = data.groupby(["precision", "method", "quantity"])["step"].transform("size")
    data = data[sizes > 1].reset_index(drop=True)
    if data.empty:
        return None
    first = study.part(MAIN).iloc[0]
    precisions = [p for p in study.precisions if p in set(data["precision"])]
    panels = []
    for quantity, label in QUANTITIES.items():
        for axis, words in AXES.items():
            for precision in precisions:
                rows = data[(data["precision"] == precision) & (data["quantity"] == quantity)]
                ylim = _limits(data[data["quantity"] == quantity])
                draw = partial(_draw, rows=rows, axis=axis, labels=(words, label), ylim=ylim)
                facet = {key: str(first[key]) for key in ("model", "task")}
                panels.append(Panel(precision, draw, facet | {"precision": precision}))
    methods = [method for method in study.methods if method in set(data["method"])]
    seeds = data.groupby(["precision", "method"])["n"].first()
    counted = " to ".join(map(str, sorted({seeds.min(), seeds.max()})))
    notes = [
        f"Each method at its chosen learning rate. Lines: mean over {counted} seeds; "
        "shades: from the smallest to the largest. Panels of a quantity share their vertical axis.",
        *(f"{line}." for line in study.lacks(MAIN)),
    ]
    return Drawing(
        "curves",
        f"{study.name}: validation over steps and over forward passes",
        panels,
        method_handles(methods),
        data,
        notes,
        columns=len(precisions),
    )


def _limits(rows: pd.DataFrame) -> tuple[float, float]:
    low, high = float(rows["mean"].min()), float(rows["mean"].max())
    room = 0.06 * (high - low) or 0.01
    return low - room, high + room


def _draw(
    axes: Axes, rows: pd.DataFrame, axis: str, labels: tuple[str, str], ylim: tuple[float, float]
) -> None:
    for method, line in rows.groupby("method", sort=False):
        style = look(str(method))
        x = line[axis].to_numpy(float)
        band = axes.fill_between(
            x,
            line["low"].to_numpy(float),
            line["high"].to_numpy(float),
            color=style.colour,
            alpha=SHADE,
            linewidth=0,
        )
        band.set_gid(f"band|{method}")
        (drawn,) = axes.plot(
            x, line["mean"], color=style.colour, linestyle=style.line, marker=style.marker
        )
        row = line.iloc[0]
        name_line(drawn, str(method), f"{style.label}, lr {row['lr']:g}, mean of {row['n']} seeds")
    axes.set(xlabel=labels[0], ylabel=labels[1], ylim=ylim)
    axes.set_xlim(left=0)
    whole_numbers(axes)
