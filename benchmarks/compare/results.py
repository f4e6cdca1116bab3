"""What the runs of the comparison say: a line for every entry, with intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from statsmodels.stats.power import TTestPower

from analysis.stats.intervals import holm, paired_t, student_interval
from benchmarks.compare.protocol import ENTRIES, Cell, Entry, Losses, chosen_for, rate_of, seeds_of
from benchmarks.compare.runs import Found

BASE = "mezo"
"""What the others are compared with."""

SHARES = (0.25, 0.5, 1.0)
"""Of the budget, at which losses are shown."""

BUDGET = 360
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
    """Returns the 95 % interval of a mean over seeds; NaN for fewer than two or where a run collapsed."""
    if len(values) < 2 or not np.isfinite(values).all():
        return NAN, NAN
    return student_interval(values)


def detectable(differences: Sequence[float]) -> float:
    """Returns the difference that so many seeds of this spread find with a probability of 80 %, at a level of 5 %."""
    if len(differences) < 3 or not np.isfinite(differences).all():
        return NAN
    effect = TTestPower().solve_power(nobs=len(differences), alpha=0.05, power=0.8)
    return float(effect * np.std(differences, ddof=1))


def line(
    part: str, entry: Entry, losses: Losses, known: Mapping[Cell, Found], base: Mapping[int, Found]
) -> dict[str, Any]:
    """Returns an entry's numbers, and its differences from the base over the seeds that both have."""
    runs = chosen_runs(part, entry, losses, known)
    earlier = {s: chosen_runs(part, entry, losses, known, s) for s in SHARES}
    values = [run["loss"] for run in runs]
    pairs = [(run, base[run["seed"]]) for run in runs if run["seed"] in base]
    gaps = [run["loss"] - other["loss"] for run, other in pairs] if entry.name != BASE else []
    right = [100 * (run["test"] - other["test"]) for run, other in pairs] if gaps else []
    finite = bool(gaps) and bool(np.isfinite(gaps).all())
    rates = sorted({run["lr"] for run in runs})
    return {
        "entry": entry.name,
        "role": entry.role,
        "trials": sum(len(of) for of in losses.values()),
        "tried": sorted(rate_of(e) for e in losses),
        "seeds": len(runs),
        "lr": rates,
        **{f"loss_{round(100 * s)}": _mean(of, s) for s, of in earlier.items()},
        **dict(zip(("low", "high"), interval(values), strict=True)),
        "gap": float(np.mean(gaps)) if gaps else NAN,
        **dict(zip(("gap_low", "gap_high"), interval(gaps), strict=True)),
        "p": paired_t(gaps) if finite else NAN,
        "detectable": detectable(gaps),
        "test": 100 * float(np.mean([run["test"] for run in runs])),
        "test_gap": float(np.mean(right)) if right else NAN,
        **dict(zip(("test_gap_low", "test_gap_high"), interval(right), strict=True)),
        "seconds": float(np.median([run["step_s"] for run in runs])) * runs[0]["steps"],
        "passes": runs[0]["passes"],
        "peak_gib": max(run["peak_gib"] for run in runs),
        "state_mib": max(run["state_mib"] for run in runs),
    }


def table(part: str, standings: Mapping[str, Losses], known: Mapping[Cell, Found]) -> pd.DataFrame:
    """Returns a line per entry that can be reported, the lowest loss first.

    `p_holm` corrects over the methods; `verdict` says whether a method is better or worse than the base, or that the
    runs do not decide.
    """
    chosen = {e.name: chosen_runs(part, e, standings.get(e.name, {}), known) for e in ENTRIES}
    base = {run["seed"]: run for run in chosen[BASE]}
    lines = [line(part, e, standings[e.name], known, base) for e in ENTRIES if chosen[e.name]]
    frame = pd.DataFrame(lines)
    if frame.empty:
        return frame
    claims = frame["role"] == "method"
    frame["p_holm"] = NAN
    frame.loc[claims, "p_holm"] = holm(frame.loc[claims, "p"].tolist())
    frame["verdict"] = [_verdict(row) for _, row in frame.iterrows()]
    return frame.sort_values("loss_100", ignore_index=True)


def _mean(runs: Sequence[Found], share: float) -> float:
    return float(np.mean([loss_at(run, share) for run in runs]))


def _verdict(row: Any) -> str:
    if row["role"] != "method" or row["entry"] == BASE:
        return ""
    if math.isinf(row["loss_100"]):
        return "collapsed"
    if not row["p_holm"] < 0.05:
        return "not decided"
    return "better" if row["gap"] < 0 else "worse"
