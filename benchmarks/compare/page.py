"""The comparison as a table and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.report.figures.drawing import Ends, Figure, Panel, Series, write
from analysis.report.style import named
from analysis.report.table import Cell, Table, markdown
from benchmarks.compare.results import interval
from benchmarks.compare.runs import Found
from zo.run.provenance import git_revision

HEAD = (
    *("method", "learning rate", "runs", "loss at 25 %", "50 %", "100 %"),
    *("difference from MeZO", "p (Holm)", "verdict", "could find", "test (%)", "difference"),
    *("passes per step", "seconds", "state (MiB)"),
)
DRAWN = 6
"""Methods in the picture, beside MeZO, BSZO and backpropagation."""


def to_table(frame: pd.DataFrame, part: str) -> Table:
    """Returns the lines of a part as a table."""
    body: list[Sequence[Cell | str]] = [_cells(row) for _, row in frame.iterrows()]
    caption = [
        f"{part}: validation loss (nats) at shares of 360 forward passes; mean over seeds, each at the rate that the"
        " other seeds choose; 95 % intervals over seeds; p corrected over the methods by Holm.",
        "Could find: the difference that this many seeds of this spread find with a probability of 80 %.",
        f"Revision {git_revision()[:12]}; seconds from a machine that had other work.",
    ]
    breaks = [i for i in range(1, len(frame)) if frame["role"][i] != frame["role"][i - 1]]
    return Table("Equal budgets", HEAD, body, caption=caption, breaks=breaks)


def _cells(row: Any) -> list[str]:
    rates = ", ".join(f"{rate:g}" for rate in row["lr"])
    return [
        *(row["entry"], rates, f"{row['trials']}", f"{row['loss_25']:.4f}"),
        *(f"{row['loss_50']:.4f}", _with(row["loss_100"], row["low"], row["high"], ".4f")),
        _with(row["gap"], row["gap_low"], row["gap_high"], "+.4f"),
        *(_text(row["p_holm"], ".3f"), row["verdict"], _text(row["detectable"], ".4f")),
        _text(row["test"], ".1f"),
        _with(row["test_gap"], row["test_gap_low"], row["test_gap_high"], "+.1f"),
        *(f"{row['passes']}", f"{row['seconds']:.0f}", f"{row['state_mib']:.1f}"),
    ]


def _text(value: float, form: str) -> str:
    return "" if math.isnan(value) else f"{value:{form}}"


def _with(value: float, low: float, high: float, form: str) -> str:
    """Returns a mean with half the width of its interval."""
    half = (high - low) / 2
    around = "" if math.isnan(half) else f" ± {half:{form.removeprefix('+')}}"
    return _text(value, form) + around


def picture(frame: pd.DataFrame, chosen: Mapping[str, Sequence[Found]], part: str) -> Figure:
    """Returns the losses over forward passes, and every method's difference from MeZO."""
    methods = frame[frame["role"] == "method"]
    best = [name for name in methods["entry"] if name not in ("mezo", "bszo")][:DRAWN]
    lines = [
        _curve(name, chosen[name]) for name in ("adam", "mezo", "bszo", *best) if name in chosen
    ]
    curves = Panel("loss over the budget", "forward passes", "validation loss (nats)", lines)
    compared = frame[frame["gap"].notna() & np.isfinite(frame["gap"])].sort_values(
        "gap", ascending=False
    )
    places = np.arange(len(compared), dtype=float)
    dots = [
        Series(
            "reference"
            if row["role"] == "question"
            else named(row["entry"].partition(",")[0], row["entry"]),
            [row["gap"]],
            [place],
            f"{row['entry']}: {row['gap']:+.4f}",
            shape="points",
        )
        for place, (_, row) in zip(places, compared.iterrows(), strict=True)
    ]
    ticks = dict(zip(places, compared["entry"], strict=True))
    gaps = Panel("loss minus MeZO's at the end", "nats; left is better", "", dots, yticks=ticks)
    note = "Bands: 95 % intervals over seeds."
    return Figure(
        f"comparison_{part}", f"Equal budgets, {part}", [curves, gaps], notes=[note], columns=2
    )


def _curve(name: str, runs: Sequence[Found]) -> Series:
    """Returns the mean loss over the evaluations that all runs have, with the interval over seeds."""
    count = min(len(run["curve"]) for run in runs)
    x = [point[0] for point in runs[0]["curve"][:count]]
    y = np.array([[point[1] for point in run["curve"][:count]] for run in runs])
    ends = np.array([interval(column) for column in y.T]) if len(runs) > 1 else None
    band: Ends = {} if ends is None else {"low": ends[:, 0], "high": ends[:, 1]}
    return Series(named(name.partition(",")[0], name), x, y.mean(axis=0), name, **band)


def save(
    frame: pd.DataFrame, chosen: Mapping[str, Sequence[Found]], part: str, directory: Path
) -> Table:
    """Writes table, picture and all numbers of a part; returns the table."""
    directory.mkdir(parents=True, exist_ok=True)
    made = to_table(frame, part)
    (directory / f"comparison_{part}.md").write_text(markdown(made), encoding="utf-8")
    runs = [{k: v for k, v in run.items() if k != "curve"} for of in chosen.values() for run in of]
    pd.DataFrame(runs).to_csv(directory / f"comparison_{part}.csv", index=False)
    write(picture(frame, chosen, part), directory)
    return made
