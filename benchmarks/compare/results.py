"""What the runs of the comparison say: a line for every entry, with intervals over seeds, as a table and a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import optimize, stats

from analysis.report.style import MUTED, RC, look
from analysis.report.table import Cell as Shown
from analysis.report.table import Column, Table, markdown, number
from analysis.stats.intervals import holm, paired_t, student_interval
from benchmarks.compare.protocol import BEFORE, PARTS, Cell, Losses, chosen_for, role_of, seeds_of
from benchmarks.compare.runs import Found, to_csv

BASE = "mezo"
"""What the others are compared with."""

SHARES = (25, 50, 100)
"""Per cent of the budget at which losses are shown."""

LOSSES = [f"loss_{percent}" for percent in SHARES]
MEANS = [*LOSSES, "gap_25", "gap_100", "default", "test"]
COLOURED = ("adam", "mezo", "bszo")


def with_interval(name: str, form: str) -> Callable[[Mapping[Any, Any]], Shown]:
    """Returns what makes a mean's cell, with half the width of its interval where there is one."""

    def cell(row: Mapping[Any, Any]) -> Shown:
        half = row[f"{name}_half"]
        tail = "" if math.isnan(half) else f" ± {half:{form.removeprefix('+')}}"
        return number(row[name], form, tail=tail)

    return cell


COLUMNS: dict[str, Column] = {
    "method": "entry",
    "learning rate": "lr",
    "runs": "trials",
    "seeds": "seeds",
    "loss at 25 %": ("loss_25", ".4f"),
    "50 %": ("loss_50", ".4f"),
    "100 %": with_interval("loss_100", ".4f"),
    "25 %: minus MeZO": with_interval("gap_25", "+.4f"),
    "100 %: minus MeZO": with_interval("gap_100", "+.4f"),
    "minus its defaults": with_interval("default", "+.4f"),
    "p (Holm)": ("p_holm", ".3f"),
    "verdict": "verdict",
    "could find": ("detectable", ".4f"),
    "test (%)": with_interval("test", ".1f"),
    "passes per step": "passes",
    "processor s": ("seconds", ".0f"),
    "state (MiB)": ("state_mib", ".1f"),
}


def chosen_runs(
    part: str, name: str, losses: Losses, known: Mapping[Cell, Found]
) -> list[dict[str, Any]]:
    """Returns a row per seed that can be reported: the run at the end, and the losses at shares of the budget.

    Each is at the rate that is best on the other seeds at this share.
    """
    seeds, tried = seeds_of(PARTS[part], losses), sum(map(len, losses.values()))
    runs = {e: {s: known[Cell(part, name, e, s)] for s in of} for e, of in losses.items()}
    rows: dict[int, dict[str, Any]] = {seed: {} for seed in seeds}
    for percent, column in zip(SHARES, LOSSES, strict=True):
        reached = {e: {s: loss_at(run, percent) for s, run in of.items()} for e, of in runs.items()}
        for seed, row in rows.items():
            rate = chosen_for(seed, reached, seeds)
            row |= {**runs[rate][seed], column: reached[rate][seed]}
    return [{**row, "role": role_of(name), "trials": tried} for row in rows.values()]


def loss_at(run: Found, percent: int) -> float:
    """Returns a run's validation loss at a share of the budget: at the evaluation that is nearest."""
    if percent == 100 or not run["losses"]:
        return float(run["loss"])
    at = PARTS[run["part"]].budget * percent / 100
    points = [point.split(":") for point in run["losses"].split()]
    return float(min(points, key=lambda point: abs(int(point[0]) - at))[1])


def table(part: str, standings: Mapping[str, Losses], known: Mapping[Cell, Found]) -> pd.DataFrame:
    """Returns a line per entry that can be reported: those with three seeds or more, then the others, then questions.

    Differences are over the seeds that both have, of questions also from their method's defaults. `p_holm` corrects
    over the methods; `verdict` says whether a method is better or worse than the base, or that the runs do not decide.
    `detectable` is the difference from the base that is significant at the level of the correction's first claim with a
    probability of 80 %.
    """
    rows = [row for name, of in standings.items() for row in chosen_runs(part, name, of, known)]
    runs = pd.DataFrame(rows)
    runs["test"] *= 100
    defaults = runs["entry"].str.partition(",")[0].where(runs["role"] == "question")
    for gap, column, other in (
        ("gap_25", "loss_25", BASE),
        ("gap_100", "loss_100", BASE),
        ("default", "loss_100", defaults),
    ):
        theirs = runs.set_index(["entry", "seed"])[column].rename("theirs")
        beside = runs.assign(entry=other).join(theirs, on=["entry", "seed"])
        runs[gap] = (runs[column] - beside["theirs"]).where(runs["entry"] != other)
    groups = runs.groupby("entry", sort=False)
    frame = groups[["role", "trials", "passes"]].first().join(groups[MEANS].mean())
    frame = frame.join(groups[MEANS].agg(of_three, half_width).add_suffix("_half"))
    frame["seeds"], frame["state_mib"] = groups.size(), groups["state_mib"].max()
    frame["lr"] = groups["lr"].agg(lambda rates: ", ".join(f"{r:g}" for r in sorted(set(rates))))
    frame["seconds"] = groups["step_s"].median() * groups["steps"].first()
    method, end = frame["role"] == "method", groups["gap_100"]
    collapsed = np.isinf(frame["loss_100"])
    alpha = 0.05 / max(1, method.sum() - 1)
    frame["detectable"] = end.agg(of_three, partial(detectable, alpha=alpha))
    p = end.agg(of_three, paired_t).where(method & ~collapsed)
    frame["p_holm"] = holm(p.tolist())
    verdicts = {
        "": ~method | (frame.index == BASE),
        "collapsed": collapsed,
        "too few seeds": frame["p_holm"].isna(),
        "not decided": frame["p_holm"] >= 0.05,
        "better": frame["gap_100"] < 0,
    }
    frame["verdict"] = np.select(list(verdicts.values()), list(verdicts), "worse")
    frame["kind"] = 2 * (frame["role"] == "question") + (frame["seeds"] < 3)
    return frame.reset_index().sort_values(["kind", "loss_100"], ignore_index=True)


def of_three(values: pd.Series, statistic: Callable[[Any], float]) -> float:
    """Returns a statistic of the values that there are, NaN unless these are three or more, all finite."""
    known = values.dropna()
    return statistic(known) if len(known) > 2 and np.isfinite(known).all() else math.nan


def half_width(values: Sequence[float]) -> float:
    """Returns half the width of the mean's 95 % interval."""
    low, high = student_interval(values)
    return (high - low) / 2


def detectable(gaps: Sequence[float], alpha: float) -> float:
    """Returns the difference that so many gaps of this spread show at level `alpha` with a probability of 80 %."""
    n = len(gaps)
    least = stats.t.ppf(1 - alpha / 2, n - 1)

    def missed(effect: float) -> float:
        return float(stats.nct.cdf(least, n - 1, effect * math.sqrt(n))) - 0.2

    return float(optimize.brentq(missed, 0.0, 1e3) * np.std(gaps, ddof=1))


def draw(frame: pd.DataFrame, part: str, path: Path) -> None:
    """Draws the losses at shares of the budget, and every entry's difference from MeZO at the end."""
    passes = [PARTS[part].budget * percent / 100 for percent in SHARES]
    methods, others = frame[frame["role"] != "question"], frame[frame["entry"] != BASE]
    with plt.rc_context(fname=RC):
        size = 7.2, max(3.6, 0.16 * len(frame))  # room for a label per line
        figure, (curves, gaps) = plt.subplots(1, 2, figsize=size, layout="constrained")
        for line in methods.to_dict("records"):
            losses, halves = ([line[name + end] for name in LOSSES] for end in ("", "_half"))
            if line["entry"] in COLOURED:
                style = look(line["entry"])
                how = {"color": style.colour, "linestyle": style.line, "marker": style.marker}
                curves.errorbar(passes, losses, halves, label=style.label, **how)
            else:
                curves.plot(passes, losses, color=MUTED, linewidth=0.6, alpha=0.6, zorder=1)
        curves.set(xlabel="forward passes of training", ylabel="validation loss (nats)")
        curves.set(xticks=passes, title="rates tuned for each point; bars: 95 %")
        best, worst = methods["loss_100"].min(), methods["loss_25"].quantile(0.9)
        curves.set_ylim(best - 0.1 * (worst - best), worst + 0.1 * (worst - best))
        curves.plot([], [], color=MUTED, linewidth=0.6, label="others")
        curves.legend()
        others = others.sort_values("gap_100", ascending=False).replace(math.inf, math.nan)
        means, ends = others["gap_100"], others["gap_100_half"]
        gaps.errorbar(means, others["entry"], xerr=ends, fmt="o", color=MUTED)
        gaps.axvline(0, color=look(BASE).colour, linewidth=0.8)
        gaps.set(xlabel="loss minus MeZO's at the end (nats)")
        gaps.set_title("left is better; bars: 95 %, from three seeds on")
        figure.suptitle(f"Equal numbers of forward passes, {part}")
    figure.savefig(path, dpi=150, metadata={"Software": None})
    plt.close(figure)


def save(frame: pd.DataFrame, known: Mapping[Cell, Found], part: str, directory: Path) -> Table:
    """Writes table, picture and what every run found; returns the table."""
    directory.mkdir(parents=True, exist_ok=True)
    before, path = known.get(Cell(part, BEFORE, 0, 0)), directory / f"comparison_{part}"
    zero_shot = "Before the first step: loss {loss:.4f}, test accuracy {right:.1f} %."
    caption = [
        f"{part}: validation loss (nats) at shares of {PARTS[part].budget} forward passes; mean over seeds, each at the"
        " rate that the other seeds choose; 95 % intervals over seeds, where there are three; p corrected over the"
        " methods.",
        zero_shot.format(right=100 * before["test"], **before) if before else "",
        "A method with one seed has chosen its rate by that seed, which flatters it: it is compared with no one.",
        "Could find: the difference that this many seeds of this spread find with a probability of 80 %, at the level"
        " of the correction's first claim.",
        "Processor seconds of a budget's steps.",
    ]
    breaks, lines = frame.index[frame["kind"].diff() > 0].tolist(), frame.to_dict("records")
    shown = Table.of("Equal budgets", lines, COLUMNS, caption=caption, breaks=breaks)
    path.with_suffix(".md").write_text(markdown(shown), encoding="utf-8")
    to_csv((run for run in known.values() if run["part"] == part), path.with_suffix(".csv"))
    draw(frame, part, path.with_suffix(".png"))
    return shown
