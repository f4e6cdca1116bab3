"""What the runs of the comparison say: a line for every entry, with intervals over seeds, as a table and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import optimize, stats

from analysis.report.style import MUTED, RC, look
from analysis.report.table import Table, markdown
from analysis.stats.intervals import holm, paired_t, student_interval
from benchmarks.compare.protocol import BEFORE, PARTS, Cell, Losses, chosen_for, role_of, seeds_of
from benchmarks.compare.runs import Found, to_csv

BASE = "mezo"
"""What the others are compared with."""

SHARES = (25, 50, 100)
"""Per cent of the budget at which losses are shown."""

Chosen: TypeAlias = dict[int, dict[int, Found]]
"""Per cent of the budget -> seed -> the run that is reported."""

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


def chosen_runs(part: str, name: str, losses: Losses, known: Mapping[Cell, Found]) -> Chosen:
    """Returns the run that is reported of every seed: at the rate that is best on the other seeds at this share."""
    seeds, chosen = seeds_of(PARTS[part], losses), {}
    runs = {e: {s: known[Cell(part, name, e, s)] for s in of} for e, of in losses.items()}
    for percent in SHARES:
        reached = {e: {s: loss_at(run, percent) for s, run in of.items()} for e, of in runs.items()}
        chosen[percent] = {s: runs[chosen_for(s, reached, seeds)][s] for s in seeds}
    return chosen


def loss_at(run: Found, percent: int) -> float:
    """Returns a run's validation loss at a share of the budget: at the evaluation that is nearest."""
    if percent == 100 or not run["losses"]:
        return float(run["loss"])
    at = PARTS[run["part"]].budget * percent / 100
    points = [point.split(":") for point in run["losses"].split()]
    return float(min(points, key=lambda point: abs(int(point[0]) - at))[1])


def line(name: str, chosen: Mapping[str, Chosen], alpha: float) -> dict[str, Any]:
    """Returns an entry's numbers, and its differences from others over the seeds that both have.

    Questions are also compared with their method's defaults. `detectable` is the difference from the base that is
    significant at level `alpha` with a probability of 80 %.
    """

    def gaps(other: str, percent: int) -> list[float]:
        own, theirs = chosen[name][percent], chosen.get(other, {}).get(percent, {})
        both = [s for s in own if s in theirs and other != name]
        return [loss_at(own[s], percent) - loss_at(theirs[s], percent) for s in both]

    runs, role, end = list(chosen[name][100].values()), role_of(name), gaps(BASE, 100)
    found: dict[str, Any] = {"entry": name, "role": role, "seeds": len(runs)}
    for percent, own in chosen[name].items():
        found |= _summary(f"loss_{percent}", [loss_at(run, percent) for run in own.values()])
        found |= _summary(f"gap_{percent}", gaps(BASE, percent))
    defaults = gaps(name.partition(",")[0], 100) if role == "question" else []
    return {
        **found,
        **_summary("default", defaults),
        **_summary("test", [100 * run["test"] for run in runs]),
        "p": paired_t(end) if _steady(end) else math.nan,
        "detectable": detectable(end, alpha) if _steady(end) else math.nan,
        "lr": sorted({run["lr"] for run in runs}),
        "seconds": np.nanmedian([run["step_s"] for run in runs]) * runs[0]["steps"],
        "passes": runs[0]["passes"],
        "state_mib": max(run["state_mib"] for run in runs),
    }


def detectable(gaps: Sequence[float], alpha: float) -> float:
    """Returns the difference that so many gaps of this spread show at level `alpha` with a probability of 80 %."""
    n = len(gaps)
    least = stats.t.ppf(1 - alpha / 2, n - 1)

    def missed(effect: float) -> float:
        return float(stats.nct.cdf(least, n - 1, effect * math.sqrt(n))) - 0.2

    return float(optimize.brentq(missed, 0.0, 1e3) * np.std(gaps, ddof=1))


def _steady(values: Sequence[float]) -> bool:
    """Whether there are three values or more, all finite."""
    return len(values) > 2 and bool(np.isfinite(values).all())


def _summary(name: str, values: Sequence[float]) -> dict[str, float]:
    """Returns mean and 95 % interval of values under a name; NaN where there is none."""
    low, high = student_interval(values) if _steady(values) else (math.nan, math.nan)
    mean = float(np.mean(values)) if values else math.nan
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def table(part: str, standings: Mapping[str, Losses], known: Mapping[Cell, Found]) -> pd.DataFrame:
    """Returns a line per entry that can be reported: those with three seeds or more, then the others, then questions.

    `p_holm` corrects over the methods; `verdict` says whether a method is better or worse than the base, or that the
    runs do not decide.
    """
    chosen = {
        name: chosen_runs(part, name, losses, known)
        for name, losses in standings.items()
        if seeds_of(PARTS[part], losses)
    }
    alpha = 0.05 / max(1, sum(role_of(name) == "method" for name in chosen) - 1)
    frame = pd.DataFrame([line(name, chosen, alpha) for name in chosen])
    frame["trials"] = [sum(map(len, standings[name].values())) for name in chosen]
    frame["p_holm"] = holm(frame["p"].where(frame["role"] == "method").tolist())
    frame["verdict"] = [_verdict(row) for _, row in frame.iterrows()]
    frame["kind"] = 2 * (frame["role"] == "question") + (frame["seeds"] < 3)
    return frame.sort_values(["kind", "loss_100"], ignore_index=True)


def _verdict(row: Any) -> str:
    if row["role"] != "method" or row["entry"] == BASE:
        return ""
    if math.isinf(row["loss_100"]):
        return "collapsed"
    if math.isnan(row["p_holm"]):
        return "too few seeds"
    if not row["p_holm"] < 0.05:
        return "not decided"
    return "better" if row["gap_100"] < 0 else "worse"


def to_table(frame: pd.DataFrame, part: str, before: Found | None) -> Table:
    """Returns the lines of a part as a table; its caption has what the model does before the first step."""
    body = [[_text(row, *column) for column in COLUMNS.values()] for _, row in frame.iterrows()]
    zero_shot = ""
    if before:
        right = f"test accuracy {100 * before['test']:.1f} %"
        zero_shot = f"Before the first step: loss {before['loss']:.4f}, {right}."
    caption = [
        f"{part}: validation loss (nats) at shares of {PARTS[part].budget} forward passes; mean over seeds, each at the"
        " rate that the other seeds choose; 95 % intervals over seeds, where there are three; p corrected over the"
        " methods.",
        zero_shot,
        "A method with one seed has chosen its rate by that seed, which flatters it: it is compared with no one.",
        "Could find: the difference that this many seeds of this spread find with a probability of 80 %, at the level"
        " of the correction's first claim.",
        "Processor seconds of a budget's steps.",
    ]
    breaks = frame.index[frame["kind"].diff() > 0].tolist()
    return Table("Equal budgets", list(COLUMNS), body, caption=caption, breaks=breaks)


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


def draw(frame: pd.DataFrame, part: str, path: Path) -> None:
    """Draws the losses at shares of the budget, and every entry's difference from MeZO at the end."""
    with plt.rc_context(fname=RC):
        size = 7.2, max(3.6, 0.16 * len(frame))  # room for a label per line
        figure, (curves, gaps) = plt.subplots(1, 2, figsize=size, layout="constrained")
        _draw_curves(curves, frame[frame["role"] != "question"], PARTS[part].budget)
        _draw_gaps(gaps, frame)
        figure.suptitle(f"Equal numbers of forward passes, {part}")
    figure.savefig(path, dpi=150, metadata={"Software": None})
    plt.close(figure)


def _draw_curves(axes: Axes, frame: pd.DataFrame, budget: int) -> None:
    x = [budget * percent / 100 for percent in SHARES]
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


def save(frame: pd.DataFrame, known: Mapping[Cell, Found], part: str, directory: Path) -> Table:
    """Writes table, picture and what every run found; returns the table."""
    directory.mkdir(parents=True, exist_ok=True)
    before, path = known.get(Cell(part, BEFORE, 0, 0)), directory / f"comparison_{part}"
    made = to_table(frame, part, before)
    path.with_suffix(".md").write_text(markdown(made), encoding="utf-8")
    to_csv((run for run in known.values() if run["part"] == part), path.with_suffix(".csv"))
    draw(frame, part, path.with_suffix(".png"))
    return made
