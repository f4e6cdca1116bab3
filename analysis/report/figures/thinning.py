"""Long histories at a length that a figure can show, without hiding what is rare.

A history is cut into at most BINS pieces of equal length in steps. Each becomes its median, and its
smallest and largest value: the envelope, in which every spike is still there.
"""

import numpy as np
import pandas as pd

BINS = 60  # of a panel's width


def width(last_step: int) -> int:
    """Steps per piece."""
    return max(1, -(-last_step // BINS))


def note(steps_each: int, with_envelope: bool = True) -> str:
    """What a reader must know of a thinned figure."""
    if steps_each == 1:
        return "Every step is drawn."
    median = f"Lines: median of {steps_each:,d} steps each"
    if not with_envelope:
        return f"{median}; the smallest and largest value among them stand in the csv."
    return f"{median}; shaded: from the smallest to the largest value among them, so that no spike is left out."


def thin(history: pd.DataFrame, key: str, steps_each: int) -> pd.DataFrame:
    """One row per piece that holds a finite value: `step` (their middle), `median`, `low`, `high`, `n`.

    Args:
        history: rows with `step`, in order; step 0, the untrained model, does not count.
        key: column; it may be absent.
        steps_each: steps per piece.
    """
    rows = history.reindex(columns=["step", key])
    rows = rows[(rows["step"] > 0) & np.isfinite(rows[key].astype(float))]
    if steps_each == 1:
        value = rows[key].astype(float)
        values = {"median": value, "low": value, "high": value}
        frame = pd.DataFrame({"step": rows["step"].astype(float), **values, "n": 1})
        return frame.reset_index(drop=True)
    groups = rows.groupby((rows["step"] - 1) // steps_each, sort=True)
    frame = pd.DataFrame(
        {
            "step": groups["step"].mean(),
            "median": groups[key].median(),
            "low": groups[key].min(),
            "high": groups[key].max(),
            "n": groups[key].count(),
        }
    )
    return frame.reset_index(drop=True)


def over_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """The thinned runs of one method and rate as one line: the means of their medians, without envelopes.

    One collapse makes the line collapsed, one chosen run chosen.
    """
    runs = rows["run_id"].nunique()
    if runs == 1:
        return rows
    others = {key: "first" for key in rows.columns if key not in ("step", "median")}
    line = rows.groupby("step", as_index=False).agg({**others, "median": "mean"})
    line["low"] = line["high"] = line["median"]
    line["n"] = 1
    if (rows["status"] == "collapsed").any():
        line["status"] = "collapsed"
    line["run_id"] = f"mean of {runs} seeds"
    return line[list(rows.columns)]


def seeds_note(seeds: int) -> list[str]:
    """What `over_seeds` did, where there are several."""
    return (
        [f"Lines: mean over up to {seeds} seeds, as far as one goes, not shaded."]
        if seeds > 1
        else []
    )
