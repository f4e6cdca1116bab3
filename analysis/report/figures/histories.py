"""Histories at a length that a figure can show: thinned, and averaged over runs that differ in nothing but the seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.history import EVALUATED, History, evaluations

BINS = 60  # pieces of a history, of a panel's width
WINDOW = 5  # pieces that a running mean is over
LOSS = "train/loss"
SIGNALS = {
    "optim/noise_std": "noise σₑ",
    "optim/shrinkage": "shrinkage γ",
    "optim/residual_rms": "residual, rms",
    "optim/posterior_trace": "posterior trace",
    "optim/mu_norm": "‖μ‖",
}
SAME = ["panel", "method", "lr", "variant"]
"""Runs that agree in these differ in nothing but the seed."""


@dataclass(frozen=True)
class Histories:
    """What a sweep's runs logged, at a figure's length.

    Attributes:
        each: Steps of a piece.
        thinned: Key -> run id -> see `thin`, of the training loss see `running_mean`.
        evaluations: Run id -> see `evaluations`.
    """

    each: int
    thinned: dict[str, dict[str, pd.DataFrame]]
    evaluations: dict[str, pd.DataFrame]


def read(rows: pd.DataFrame, logged: History) -> Histories:
    """Read every run's history once; the signals of the chosen runs alone."""
    each = piece(rows["made_steps"].max())
    thinned: dict[str, dict[str, pd.DataFrame]] = {key: {} for key in (LOSS, *SIGNALS)}
    evaluated = {}
    for run_id, chosen in zip(rows["run_id"], rows["chosen"], strict=True):
        keys = (LOSS, *SIGNALS) if chosen else (LOSS,)
        history = logged.one(run_id, [*keys, *EVALUATED])
        for key in keys:
            thinned[key][run_id] = (running_mean if key == LOSS else thin)(history, key, each)
        evaluated[run_id] = evaluations(history)
    return Histories(each, thinned, evaluated)


def piece(steps: float) -> int:
    """The number of steps of a piece."""
    return max(1, -(-int(steps) // BINS)) if steps == steps else 1


def thin(history: pd.DataFrame, key: str, each: int) -> pd.DataFrame:
    """One row per piece of `each` steps that holds a finite value.

    Step 0, the untrained model, does not count.

    Returns:
        Columns `step` (the middle), `y` (median), `low`, `high` (smallest and largest), `n` (values).
    """
    groups = _pieces(history, key, each)
    parts = {"step": groups["step"].mean(), "y": groups[key].median()}
    parts |= {"low": groups[key].min(), "high": groups[key].max(), "n": groups[key].count()}
    return pd.DataFrame(parts).reset_index(drop=True)


def running_mean(history: pd.DataFrame, key: str, each: int) -> pd.DataFrame:
    """The mean over WINDOW pieces around each piece of `thin`: columns `step` (the middle) and `y`.

    Where `each` is 1 every step stands for itself.
    """
    groups = _pieces(history, key, each)
    window = WINDOW if each > 1 else 1
    sums = groups[key].agg(["sum", "count"]).rolling(window, center=True, min_periods=1).sum()
    frame = pd.DataFrame({"step": groups["step"].mean(), "y": sums["sum"] / sums["count"]})
    return frame.reset_index(drop=True)


def _pieces(history: pd.DataFrame, key: str, each: int) -> Any:
    """The finite values behind step 0, by pieces of `each` steps."""
    rows = history.reindex(columns=["step", key]).astype(float)
    rows = rows[(rows["step"] > 0) & np.isfinite(rows[key])]
    return rows.groupby((rows["step"] - 1) // each)


def mean_over(pieces: Sequence[pd.DataFrame], x: str, y: str) -> pd.DataFrame:
    """The mean of several runs where all of them have a value, `low` and `high` from the smallest to the largest run.

    Args:
        pieces: one frame per run, with `step`, x and y; a single one comes back as it is.
        x: column of horizontal positions; averaged too.
        y: column of heights.
    """
    if len(pieces) == 1:
        return pieces[0]
    groups = pd.concat(pieces).groupby("step")
    heights = groups[y].agg(["mean", "min", "max"]).set_axis([y, "low", "high"], axis=1)
    frame = heights.assign(**{x: groups[x].mean()})[groups.size() == len(pieces)]
    return frame.reset_index(drop=x == "step")
