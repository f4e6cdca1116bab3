"""The comparison as a table and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.report.style import MUTED, RC, look
from analysis.report.table import Table, markdown
from benchmarks.compare.protocol import PARTS
from benchmarks.compare.protocol import Cell as Run
from benchmarks.compare.results import BASE, SHARES
from benchmarks.compare.runs import Found, to_frame, zero_shot

COLUMNS = {
    "method": ("entry", ""),
    "learning rate": ("lr", ""),
    "runs": ("trials", ""),
    "seeds": ("seeds", ""),
    "loss at 25 %": ("loss_25", ".4f"),
    "50 %": ("loss_50", ".4f"),
    "100 %": ("loss_100", ".4f±"),
    "25 %: minus MeZO": ("gap_25", "+.4f±"),
    "100 %: minus MeZO": ("gap_100", "+.4f±"),
    "minus its defaults": ("default", "+.4f±"),
    "p (Holm)": ("p_holm", ".3f"),
    "verdict": ("verdict", ""),
    "could find": ("detectable", ".4f"),
    "test (%)": ("test", ".1f±"),
    "passes per step": ("passes", ""),
    "processor s": ("seconds", ".0f"),
    "state (MiB)": ("state_mib", ".1f"),
}
"""Heading -> column and format; ± adds half the width of the interval."""

COLOURED = ("adam", "mezo", "bszo")


def to_table(frame: pd.DataFrame, part: str, before: str) -> Table:
    """Returns the lines of a part as a table; its caption has what the model does before the first step."""
    body = [[_text(row, *column) for column in COLUMNS.values()] for _, row in frame.iterrows()]
    caption = [
        f"{part}: validation loss (nats) at shares of {PARTS[part].budget} forward passes; mean over seeds, each at the"
        " rate that the other seeds choose; 95 % intervals over seeds, where there are three; p corrected over the"
        " methods.",
        before,
        "A method with one seed has chosen its rate by that seed, which flatters it: it is compared with no one.",
        "Could find: the difference that this many seeds of this spread find with a probability of 80 %, at the level"
        " of the correction's first claim.",
        "Processor seconds of a budget's steps.",
    ]
    kind = frame["question"] * 2 + frame["few"]
    breaks = [i for i in range(1, len(frame)) if kind[i] != kind[i - 1]]
    return Table("Equal budgets", list(COLUMNS), list(body), caption=caption, breaks=breaks)


def _text(row: Any, name: str, form: str) -> str:
    value = row[name]
    if isinstance(value, list):
        return ", ".join(f"{rate:g}" for rate in value)
    if not form or math.isnan(value):
        return str(value) if not form else ""
    half = (row[f"{name}_high"] - row[f"{name}_low"]) / 2 if form.endswith("±") else math.nan
    form = form.removesuffix("±")
    around = "" if math.isnan(half) else f" ± {half:{form.removeprefix('+')}}"
    return f"{value:{form}}{around}"


def picture(frame: pd.DataFrame, part: str) -> Figure:
    """Returns the losses at shares of the budget, and every entry's difference from MeZO at the end."""
    with plt.rc_context(fname=RC):
        size = 7.2, max(3.6, 0.16 * len(frame))  # room for a label per line
        figure, (curves, gaps) = plt.subplots(1, 2, figsize=size, layout="constrained")
        _draw_curves(curves, frame[frame["role"] != "question"], PARTS[part].budget)
        _draw_gaps(gaps, frame)
        figure.suptitle(f"Equal numbers of forward passes, {part}")
    return figure


def _draw_curves(axes: Axes, frame: pd.DataFrame, budget: int) -> None:
    x = [budget * share for share in SHARES.values()]
    for _, row in frame.iterrows():
        y, low, high = ([row[f"loss_{at}{end}"] for at in SHARES] for end in ("", "_low", "_high"))
        if row["entry"] not in COLOURED:
            axes.plot(x, y, color=MUTED, linewidth=0.6, alpha=0.6, zorder=1)
            continue
        style = look(row["entry"])
        line = {"color": style.colour, "linestyle": style.line, "marker": style.marker}
        axes.plot(x, y, label=style.label, **line)
        axes.fill_between(x, low, high, color=style.colour, alpha=0.15, linewidth=0)
    axes.plot([], [], color=MUTED, linewidth=0.6, label="others")
    best, worst = frame["loss_100"].min(), frame["loss_25"].quantile(0.9)
    axes.set(xlabel="forward passes of training", ylabel="validation loss (nats)", xticks=x)
    axes.set_ylim(best - 0.1 * (worst - best), worst + 0.1 * (worst - best))
    axes.set_title("rates tuned for each point; bands: 95 %")
    axes.legend()


def _draw_gaps(axes: Axes, frame: pd.DataFrame) -> None:
    shown = frame[frame["entry"] != BASE].sort_values("gap_100", ascending=False)
    most = shown["gap_100"].replace(math.inf, math.nan).max() * 1.05
    for place, (_, row) in enumerate(shown.iterrows()):
        colour = look(row["entry"]).colour if row["entry"] in COLOURED else MUTED
        several = not math.isnan(row["gap_100_low"])
        if several:
            axes.hlines(place, row["gap_100_low"], row["gap_100_high"], color=colour)
        mark = ">" if row["gap_100"] > most else "o"
        at, face = min(row["gap_100"], most), colour if several else "white"
        axes.plot(at, place, mark, color=colour, markerfacecolor=face)
    axes.axvline(0, color=look(BASE).colour, linewidth=0.8)
    axes.set_yticks(range(len(shown)), shown["entry"])
    axes.set_xlabel("loss minus MeZO's at the end (nats)")
    axes.set_title("left is better; hollow: one or two seeds")


def save(frame: pd.DataFrame, known: Mapping[Run, Found], part: str, directory: Path) -> Table:
    """Writes table, picture and what every run found; returns the table."""
    directory.mkdir(parents=True, exist_ok=True)
    made, path = to_table(frame, part, zero_shot(part, known)), directory / f"comparison_{part}"
    path.with_suffix(".md").write_text(markdown(made), encoding="utf-8")
    runs = to_frame(run for run in known.values() if run["part"] == part)
    runs.to_csv(path.with_suffix(".csv"), index=False, float_format="%.6g")
    drawn = picture(frame, part)
    drawn.savefig(path.with_suffix(".png"), dpi=150, metadata={"Software": None})
    plt.close(drawn)
    return made
