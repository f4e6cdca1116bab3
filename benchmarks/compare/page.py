"""The comparison as a table and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.report.style import MUTED, RC, look
from analysis.report.table import Cell, Table, markdown
from benchmarks.compare.protocol import BUDGET
from benchmarks.compare.protocol import Cell as Run
from benchmarks.compare.results import BASE, SHARES
from benchmarks.compare.runs import Found
from zo.run.provenance import git_revision

HEAD = (
    *("method", "learning rate", "runs", "seeds", "loss at 25 %", "50 %", "100 %"),
    *("25 %: minus MeZO", "100 %: minus MeZO", "p (Holm)", "verdict", "could find"),
    *("test (%)", "passes per step", "processor s", "state (MiB)"),
)
COLOURED = ("adam", "mezo", "bszo")


def to_table(frame: pd.DataFrame, part: str) -> Table:
    """Returns the lines of a part as a table."""
    body: list[Sequence[Cell | str]] = [_cells(row) for _, row in frame.iterrows()]
    caption = [
        f"{part}: validation loss (nats) at shares of {BUDGET} forward passes; mean over seeds, each at the rate that"
        " the other seeds choose; 95 % intervals over seeds, where there are three; p corrected over the methods.",
        "A method with one seed has chosen its rate by that seed, which flatters it: it is compared with no one.",
        "Could find: the difference that this many seeds of this spread find with a probability of 80 %.",
        f"Revision {git_revision()[:12]}; processor seconds of a budget's steps.",
    ]
    kind = frame["question"] * 2 + frame["few"]
    breaks = [i for i in range(1, len(frame)) if kind[i] != kind[i - 1]]
    return Table("Equal budgets", HEAD, body, caption=caption, breaks=breaks)


def _cells(row: Any) -> list[str]:
    rates = ", ".join(f"{rate:g}" for rate in row["lr"])
    return [
        *(row["entry"], rates, f"{row['trials']}", f"{row['seeds']}"),
        *(f"{row[f'loss_{share}']:.4f}" for share in (25, 50)),
        *(
            _with(row, "loss_100", ".4f"),
            _with(row, "gap_25", "+.4f"),
            _with(row, "gap_100", "+.4f"),
        ),
        *(_text(row["p_holm"], ".3f"), row["verdict"], _text(row["detectable"], ".4f")),
        _with(row, "test", ".1f"),
        *(f"{row['passes']}", _text(row["seconds"], ".0f"), f"{row['state_mib']:.1f}"),
    ]


def _text(value: float, form: str) -> str:
    return "" if math.isnan(value) else f"{value:{form}}"


def _with(row: Any, name: str, form: str) -> str:
    """Returns a mean with half the width of its interval."""
    half = (row[f"{name}_high"] - row[f"{name}_low"]) / 2
    around = "" if math.isnan(half) else f" ± {half:{form.removeprefix('+')}}"
    return _text(row[name], form) + around


def picture(frame: pd.DataFrame, part: str) -> Figure:
    """Returns the losses at shares of the budget, and every entry's difference from MeZO at the end."""
    with plt.rc_context(RC):
        figure, (curves, gaps) = plt.subplots(1, 2, figsize=(7.2, 3.6), layout="constrained")
        _draw_curves(curves, frame[frame["role"] != "question"])
        _draw_gaps(gaps, frame)
        figure.suptitle(f"{len(frame)} methods at an equal number of forward passes, {part}")
    return figure


def _draw_curves(axes: Axes, frame: pd.DataFrame) -> None:
    x = [BUDGET * share for share in SHARES]
    for _, row in frame.iterrows():
        names = [f"loss_{round(100 * share)}" for share in SHARES]
        y = np.array([row[name] for name in names])
        if row["entry"] not in COLOURED:
            axes.plot(x, y, color=MUTED, linewidth=0.6, alpha=0.6, zorder=1)
            continue
        style = look(row["entry"])
        axes.plot(
            x, y, color=style.colour, linestyle=style.line, marker=style.marker, label=style.label
        )
        low, high = (np.array([row[f"{name}_{end}"] for name in names]) for end in ("low", "high"))
        axes.fill_between(x, low, high, color=style.colour, alpha=0.15, linewidth=0)
    axes.plot([], [], color=MUTED, linewidth=0.6, label="others")
    best, worst = frame["loss_100"].min(), frame["loss_25"].quantile(0.9)
    axes.set(xlabel="forward passes of training", ylabel="validation loss (nats)", xticks=x)
    axes.set_ylim(best - 0.1 * (worst - best), worst + 0.1 * (worst - best))
    axes.set_title("rates tuned for each point; bands: 95 %")
    axes.legend()


def _draw_gaps(axes: Axes, frame: pd.DataFrame) -> None:
    shown = frame[frame["entry"] != BASE].sort_values("gap_100", ascending=False)
    most = shown["gap_100"].replace(math.inf, math.nan).quantile(0.9) * 1.5
    for place, (_, row) in enumerate(shown.iterrows()):
        colour = look(row["entry"]).colour if row["entry"] in COLOURED else MUTED
        several = not math.isnan(row["gap_100_low"])
        if several:
            axes.hlines(place, row["gap_100_low"], row["gap_100_high"], color=colour)
        face = colour if several else "white"
        far = row["gap_100"] > most
        axes.plot(
            min(row["gap_100"], most),
            place,
            ">" if far else "o",
            color=colour,
            markerfacecolor=face,
        )
    axes.axvline(0, color=look(BASE).colour, linewidth=0.8)
    axes.set_yticks(range(len(shown)), shown["entry"])
    axes.set(
        xlabel="loss minus MeZO's at the end (nats)",
        title="left is better; hollow: one or two seeds",
    )


def save(frame: pd.DataFrame, known: Mapping[Run, Found], part: str, directory: Path) -> Table:
    """Writes table, picture and what every run found; returns the table."""
    directory.mkdir(parents=True, exist_ok=True)
    made = to_table(frame, part)
    (directory / f"comparison_{part}.md").write_text(markdown(made), encoding="utf-8")
    runs = [_flat(run) for run in known.values() if run["part"] == part]
    pd.DataFrame(runs).sort_values(["entry", "lr", "seed"]).to_csv(
        directory / f"comparison_{part}.csv", index=False, float_format="%.6g"
    )
    drawn = picture(frame, part)
    drawn.savefig(directory / f"comparison_{part}.png", dpi=150, metadata={"Software": None})
    plt.close(drawn)
    return made


def _flat(run: Found) -> dict[str, Any]:
    """Returns what a run found, its evaluations as text: forward passes:loss."""
    curve = " ".join(f"{passes}:{loss:.4f}" for passes, loss, _ in run["curve"])
    return {k: v for k, v in run.items() if k != "curve"} | {"losses": curve}
