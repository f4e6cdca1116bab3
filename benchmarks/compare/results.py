"""What the runs of the comparison say: a line for every entry, with intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from scipy import optimize, stats

from analysis.stats.intervals import holm, paired_t, student_interval
from benchmarks.compare.protocol import PARTS, Cell, Entry, Losses, chosen_for, seeds_of
from benchmarks.compare.runs import Found

BASE = "mezo"
"""What the others are compared with."""

SHARES = {25: 0.25, 50: 0.5, 100: 1.0}
"""Of the budget, at which losses are shown."""

NAN = math.nan
Chosen: TypeAlias = dict[int, dict[int, Found]]
"""Per cent of the budget -> seed -> the run that is reported."""


def chosen_runs(part: str, entry: Entry, losses: Losses, known: Mapping[Cell, Found]) -> Chosen:
    """Returns the run that is reported of every seed: at the rate that is best on the other seeds at this share."""
    seeds, chosen = seeds_of(PARTS[part], losses), {}
    for percent in SHARES:
        reached = {
            e: {s: loss_at(known[Cell(part, entry.name, e, s)], percent) for s in of}
            for e, of in losses.items()
        }
        chosen[percent] = {
            s: known[Cell(part, entry.name, chosen_for(s, reached, seeds), s)] for s in seeds
        }
    return chosen


def loss_at(run: Found, percent: int) -> float:
    """Returns a run's validation loss at a share of the budget: at the evaluation that is nearest."""
    if percent == 100 or not run["curve"]:
        return float(run["loss"])
    at = SHARES[percent] * PARTS[run["part"]].budget
    return float(min(run["curve"], key=lambda point: abs(point[0] - at))[1])


def steady(values: Sequence[float]) -> bool:
    """Whether there are three values or more, all finite."""
    return len(values) > 2 and bool(np.isfinite(values).all())


def line(
    entry: Entry, losses: Losses, chosen: Chosen, others: Mapping[str, Chosen], alpha: float
) -> dict[str, Any]:
    """Returns an entry's numbers, and its differences from others over the seeds that both have.

    Questions are also compared with their method's defaults. `detectable` is the difference from the base that is
    significant at level `alpha` with a probability of 80 %.
    """
    runs = list(chosen[100].values())
    found: dict[str, Any] = {}
    for percent, own in chosen.items():
        found |= _summary(f"loss_{percent}", [loss_at(run, percent) for run in own.values()])
        found |= _summary(f"gap_{percent}", _gaps(own, others.get(BASE, {}), percent))
    gaps = _gaps(chosen[100], others.get(BASE, {}), 100)
    defaults = others.get(entry.name.partition(",")[0], {}) if entry.role == "question" else {}
    found |= _summary("default", _gaps(chosen[100], defaults, 100))
    return {
        "entry": entry.name,
        "role": entry.role,
        "trials": sum(len(of) for of in losses.values()),
        "seeds": len(runs),
        "lr": sorted({run["lr"] for run in runs}),
        **found,
        "p": paired_t(gaps) if steady(gaps) else NAN,
        "detectable": detectable(gaps, alpha) if steady(gaps) else NAN,
        **_summary("test", [100 * run["test"] for run in runs]),
        "seconds": pd.Series([run["step_s"] for run in runs]).median() * runs[0]["steps"],
        "passes": runs[0]["passes"],
        "state_mib": max(run["state_mib"] for run in runs),
    }


def _gaps(own: Mapping[int, Found], other: Chosen, percent: int) -> list[float]:
    """Returns the differences of losses at a share of the budget, over the seeds that both have."""
    theirs = other.get(percent, {})
    return [loss_at(own[s], percent) - loss_at(theirs[s], percent) for s in own if s in theirs]


def detectable(gaps: Sequence[float], alpha: float) -> float:
    """Returns the difference that so many gaps of this spread show at level `alpha` with a probability of 80 %."""
    n = len(gaps)
    least = stats.t.ppf(1 - alpha / 2, n - 1)

    def missed(effect: float) -> float:
        return float(stats.nct.cdf(least, n - 1, effect * math.sqrt(n))) - 0.2

    return float(optimize.brentq(missed, 0.0, 1e3) * np.std(gaps, ddof=1))


def _summary(name: str, values: Sequence[float]) -> dict[str, float]:
    """Returns mean and 95 % interval of values under a name; NaN where there is none."""
    low, high = student_interval(values) if steady(values) else (NAN, NAN)
    mean = float(np.mean(values)) if values else NAN
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def table(part: str, standings: Mapping[str, Losses], known: Mapping[Cell, Found]) -> pd.DataFrame:
    """Returns a line per entry that can be reported: those with three seeds or more, then the others, then questions.

    `p_holm` corrects over the methods; `verdict` says whether a method is better or worse than the base, or that the
    runs do not decide.
    """
    reported = [e for e in PARTS[part].entries if seeds_of(PARTS[part], standings.get(e.name, {}))]
    chosen = {e.name: chosen_runs(part, e, standings[e.name], known) for e in reported}
    alpha = 0.05 / max(1, sum(e.role == "method" for e in reported) - 1)
    lines = []
    for e in reported:
        others = {name: of for name, of in chosen.items() if name != e.name}
        lines.append(line(e, standings[e.name], chosen[e.name], others, alpha))
    frame = pd.DataFrame(lines)
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
