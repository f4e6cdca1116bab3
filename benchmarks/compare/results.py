"""What the runs of the comparison say: a line for every entry, with intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from statsmodels.stats.power import TTestPower

from analysis.stats.intervals import holm, paired_t, student_interval
from benchmarks.compare.protocol import (
    BUDGET,
    ENTRIES,
    Cell,
    Entry,
    Losses,
    chosen_for,
    rate_of,
    seeds_of,
)
from benchmarks.compare.runs import Found

BASE = "mezo"
"""What the others are compared with."""

SHARES = (0.25, 0.5, 1.0)
"""Of the budget, at which losses are shown."""

NAN = math.nan


def chosen_runs(
    part: str, entry: Entry, losses: Losses, known: Mapping[Cell, Found], share: float = 1.0
) -> list[Found]:
    """Returns the run that is reported of every seed: at the rate that is best on the other seeds at this share."""
    seeds = seeds_of(losses)
    reached = {
        e: {s: loss_at(known[Cell(part, entry.name, e, s)], share) for s in of}
        for e, of in losses.items()
    }
    cells = [Cell(part, entry.name, chosen_for(s, reached, seeds), s) for s in seeds]
    return [known[cell] for cell in cells]


def loss_at(run: Found, share: float) -> float:
    """Returns a run's validation loss at a share of the budget: at the evaluation that is nearest."""
    if share == 1.0 or not run["curve"]:
        return float(run["loss"])
    return float(min(run["curve"], key=lambda point: abs(point[0] - share * BUDGET))[1])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval of a mean over seeds; NaN for fewer than three or where a run collapsed."""
    if len(values) < 3 or not np.isfinite(values).all():
        return NAN, NAN
    return student_interval(values)


def detectable(differences: Sequence[float]) -> float:
    """Returns the difference that so many seeds of this spread find with a probability of 80 %, at a level of 5 %."""
    if len(differences) < 3 or not np.isfinite(differences).all():
        return NAN
    effect = TTestPower().solve_power(nobs=len(differences), alpha=0.05, power=0.8)
    return float(effect * np.std(differences, ddof=1))


def line(
    part: str,
    entry: Entry,
    losses: Losses,
    known: Mapping[Cell, Found],
    base: Mapping[float, Mapping[int, Found]],
) -> dict[str, Any]:
    """Returns an entry's numbers, and its differences from the base over the seeds that both have.

    Args:
        part: Of PARTS.
        entry: Of ENTRIES.
        losses: Of its runs.
        known: What all runs found.
        base: Share of the budget -> seed -> MeZO's run.
    """
    runs = chosen_runs(part, entry, losses, known)
    found: dict[str, Any] = {}
    gaps: list[float] = []
    for share in SHARES:
        chosen = chosen_runs(part, entry, losses, known, share)
        values = [loss_at(run, share) for run in chosen]
        gaps = [] if entry.name == BASE else _gaps(chosen, base[share], share)
        found |= _summary(f"loss_{round(100 * share)}", values)
        found |= _summary(f"gap_{round(100 * share)}", gaps)
    return {
        "entry": entry.name,
        "role": entry.role,
        "trials": sum(len(of) for of in losses.values()),
        "tried": sorted(rate_of(e) for e in losses),
        "seeds": len(runs),
        "lr": sorted({run["lr"] for run in runs}),
        **found,
        "p": paired_t(gaps) if len(gaps) > 2 and np.isfinite(gaps).all() else NAN,
        "detectable": detectable(gaps),
        **_summary("test", [100 * run["test"] for run in runs]),
        "seconds": pd.Series([run["step_s"] for run in runs]).median() * runs[0]["steps"],
        "passes": runs[0]["passes"],
        "peak_gib": max(run["peak_gib"] for run in runs),
        "state_mib": max(run["state_mib"] for run in runs),
    }


def _gaps(runs: Sequence[Found], base: Mapping[int, Found], share: float) -> list[float]:
    """Returns the losses minus the base's, over the seeds that both have."""
    pairs = [(run, base[run["seed"]]) for run in runs if run["seed"] in base]
    return [loss_at(run, share) - loss_at(other, share) for run, other in pairs]


def _summary(name: str, values: Sequence[float]) -> dict[str, float]:
    """Returns mean and interval of values under a name."""
    low, high = interval(values)
    return {
        name: float(np.mean(values)) if values else NAN,
        f"{name}_low": low,
        f"{name}_high": high,
    }


def table(part: str, standings: Mapping[str, Losses], known: Mapping[Cell, Found]) -> pd.DataFrame:
    """Returns a line per entry that can be reported: those with three seeds or more, then the others, then questions.

    `p_holm` corrects over the methods; `verdict` says whether a method is better or worse than the base, or that the
    runs do not decide.
    """
    (mezo,) = (entry for entry in ENTRIES if entry.name == BASE)
    base = {
        share: {run["seed"]: run for run in chosen_runs(part, mezo, standings[BASE], known, share)}
        for share in SHARES
    }
    reported = [e for e in ENTRIES if seeds_of(standings.get(e.name, {}))]
    lines = [line(part, e, standings[e.name], known, base) for e in reported]
    frame = pd.DataFrame(lines)
    if frame.empty:
        return frame
    claims = frame["role"] == "method"
    frame["p_holm"] = NAN
    frame.loc[claims, "p_holm"] = holm(frame.loc[claims, "p"].tolist())
    frame["verdict"] = [_verdict(row) for _, row in frame.iterrows()]
    frame["few"] = (frame["seeds"] < 3).astype(int)
    frame["question"] = (frame["role"] == "question").astype(int)
    return frame.sort_values(["question", "few", "loss_100"], ignore_index=True)


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
