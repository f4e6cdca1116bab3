"""The measured slopes as a table in Markdown and as a figure."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from analysis.paper.names import model_label
from analysis.report.figures.drawing import Figure, Panel, Series, write
from analysis.report.style import look, named
from analysis.report.table import Table, markdown, number

SERIES = {
    "slope": named("reference", "slope itself, float32"),
    "probe": named("lozo", "error by rounding θ ± εz"),
    "forward": named("mezo", "by the forward pass"),
    "loss": named("bszo", "by the loss in the dtype"),
}
SHORT = {"bfloat16": "bf16", "float16": "fp16"}
SIDES = {1: "one-sided", 2: "two-sided"}
HEAD = ("model", "dtype", "ε", "slope of", "slope", "probe", "forward", "loss", "all", "sign %")


def page(frame: pd.DataFrame) -> str:
    """Returns a table of all rows, with where they come from."""
    rows = [
        [
            *(model_label(r.model), SHORT[r.dtype], f"{r.eps:g}", SIDES[r.sides]),
            *(number(value, ".3g") for value in (r.slope, r.probe, r.forward, r.loss, r.error)),
            number(r.right_sign, ".0f", 100),
        ]
        for r in frame.itertuples()
    ]
    caption = [
        "Root mean square of slopes in float32, and of the error that each rounding adds; all: their sum's;"
        " sign: slopes whose sign is right with all three (0 has none)."
    ]
    table = Table("Slopes in half precision", HEAD, rows, caption=caption, names=4)
    made = frame.groupby(["device", "torch", "revision"])["date"].max()
    lines = [
        f"{device}; torch {torch}; revision {revision}; {date}"
        for (device, torch, revision), date in made.items()
    ]
    counts = ", ".join(
        f"{model_label(model)}: {n} directions"
        for model, n in frame.groupby("model")["directions"].min().items()
    )
    return "\n\n".join([markdown(table).rstrip(), counts + ".", *lines]) + "\n"


def draw(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Writes slope_errors.png and .pdf and the numbers behind them; returns the paths."""
    values = frame[list(SERIES)].to_numpy()
    limits = values[values > 0].min() / 2, values.max() * 2
    panels = [
        _panel(f"{model_label(model)}, {SHORT[dtype]}", own, limits)
        for (model, dtype), own in frame.groupby(["model", "dtype"])
    ]
    notes = (
        "Root mean squares over random directions, each on a mini-batch of its own, at the pretrained weights: of the"
        " slope of the loss along a direction, and of the errors in it. Where an error is above the grey line, a slope"
        " says more about rounding than about the loss. Hollow: two-sided slopes.",
    )
    title = "What a slope is made of in half precision"
    data = frame.drop(columns=["device", "revision", "torch", "date"])
    return write(
        Figure("slope_errors", title, panels, notes, columns=2, hollow="two-sided", data=data),
        directory,
    )


def _panel(title: str, own: pd.DataFrame, limits: tuple[float, float]) -> Panel:
    series = [
        Series(
            method,
            rows["eps"],
            rows[name],
            f"{look(method).label}, {SIDES[sides]}",
            hollow=sides == 2,
        )
        for sides, rows in own.sort_values("eps").groupby("sides")
        for name, method in SERIES.items()
    ]
    label = "slope or error (nats per ε)"
    return Panel(title, "ε", label, series, xlog=True, ylog=True, ylim=limits)
