"""A comparison: the settings that each line chose by its tuning runs, and what the chosen ones lose after the budget.

A sweep of lines (`zo.config.lines`) has a row per line here. A line's loss is the validation loss after the whole
budget. A collapsed run counts with the loss of the untrained model, or with its own last loss if that is higher.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.frames import Frames
from analysis.logs.history import EVALUATED, evaluations
from analysis.logs.run_file import LogError
from analysis.select.cell_runs import OF_UNIT, shortfall
from analysis.stats.intervals import LEVEL, holm
from analysis.stats.paired import detectable, paired_estimates

BASE, FAMILY, OTHER = "base", "family", "other"
SHARES = (25, 50, 100)
"""Per cent of the budget at which losses are read, at the nearest evaluation."""

LOSSES = [f"loss_{share}" for share in SHARES]
AT_END = LOSSES[-1]
BETTER, WORSE, OPEN = "better", "worse", "not decided"


def run_losses(cells: pd.DataFrame, frames: Frames) -> pd.DataFrame:
    """The runs that have ended, of filled cells with lines: `setting` and LOSSES are added.

    `setting` is what was tuned or set, as JSON text, the learning rate among it.
    """
    ended = cells[cells["status"].isin(["finished", "collapsed"]) & (cells["line"] != "")]
    untrained = ended.loc[ended["steps"] == 0, "val_loss"].max()
    rows = []
    for run in ended.to_dict("records"):
        curve = evaluations(frames.history.one(run["run_id"], EVALUATED), by="loss")
        rows.append(_at_shares(curve, run, untrained))
    losses = pd.DataFrame(rows, columns=LOSSES, index=ended.index, dtype=float)
    return ended.assign(setting=[_setting(run) for run in ended.to_dict("records")]).join(losses)


def _at_shares(curve: pd.DataFrame, run: Mapping[Any, Any], untrained: float) -> list[float]:
    """A run's losses at the shares of its budget."""
    at = {share: run["steps"] * share / 100 for share in SHARES}
    if run["status"] == "collapsed":
        if np.isnan(untrained):
            what = f"run {run['run_id']} of {run['sweep']} collapsed"
            raise LogError(
                f"{what}, and the loss of the untrained model is not known: run zero_shot"
            )
        lost = float(np.nanmax([untrained, *curve["loss"][np.isfinite(curve["loss"])].tail(1)]))
        end = pd.DataFrame({"step": [float(run["steps"])], "loss": [lost]})
        beyond = [s for s in at.values() if curve.empty or s > curve["step"].max()]
        end = pd.concat([end, pd.DataFrame({"step": beyond, "loss": lost})])
        curve = pd.concat([curve[["step", "loss"]], end], ignore_index=True)
    if curve.empty:
        raise LogError(f"the evaluations of run {run['run_id']} are not there")
    steps, losses = curve["step"].to_numpy(), curve["loss"].to_numpy()
    return [float(losses[np.abs(steps - step).argmin()]) for step in at.values()]


def _setting(run: Mapping[Any, Any]) -> str:
    tuned = {"lr": run["lr"], **json.loads(run["variant"])} if run["steps"] else {}
    return json.dumps(tuned, sort_keys=True)


def choices(runs: pd.DataFrame, best: int = 1) -> pd.DataFrame:
    """The best settings of each line: `line`, `setting`, `loss` (mean over seeds), `seeds`, `tried` (runs), `edge`.

    Compared are a line's settings that most seeds have ended. Of equal ones the first by `setting` wins. `edge` names
    what has its smallest or largest value of those tried, joined by commas.
    """
    keys = ["line", "setting"]
    means = runs.groupby(keys).agg(loss=(AT_END, "mean"), seeds=("seed", "nunique")).reset_index()
    means["tried"] = means["line"].map(runs.groupby("line").size())
    most = means.groupby("line")["seeds"].transform("max")
    compared = means[means["seeds"] == most].sort_values(["line", "loss", "setting"])
    chosen = compared.groupby("line", sort=False).head(best).reset_index(drop=True)
    return chosen.assign(edge=_edges(means, chosen))


def _edges(means: pd.DataFrame, chosen: pd.DataFrame) -> list[str]:
    """What each chosen setting has at the smallest or largest of the values tried for its line."""

    def numbers(frame: pd.DataFrame) -> pd.DataFrame:
        texts = frame["setting"].unique()
        parsed = pd.DataFrame([json.loads(text) for text in texts], index=texts)
        plain = parsed.select_dtypes("number").reindex(frame["setting"]).reset_index(drop=True)
        return plain.assign(line=frame["line"].to_numpy())

    ends = numbers(means).groupby("line").agg(["min", "max"])
    of_chosen = numbers(chosen)
    found = [""] * len(chosen)
    for key in of_chosen.columns.drop("line"):
        low, high = (ends[key, end].reindex(of_chosen["line"]).to_numpy() for end in ("min", "max"))
        value = of_chosen[key].to_numpy()
        at_edge = (low < high) & ((value == low) | (value == high))
        name = key.rpartition(".")[2]
        found = [
            ", ".join(filter(None, (f, name * int(e)))) for f, e in zip(found, at_edge, strict=True)
        ]
    return found


def settings_file(sweep: str, cells: pd.DataFrame, frames: Frames, said: str, best: int) -> str:
    """The text of results/settings/SWEEP.csv: the `best` settings of each line, chosen by the runs of tuning cells.

    Raises:
        LogError: If tuning runs lack: every line gets the same number.
    """
    if lacking := shortfall(cells):
        raise LogError(f"no settings for {sweep}: {'; '.join(lacking)}")
    runs = run_losses(cells, frames)
    chosen = choices(runs[runs["steps"] > 0], best).round({"loss": 6})
    head = f"# Written by `python -m analysis choose {sweep}`: of each line the {best} of lowest loss after"
    return f"{head} the budget.\n# {said}\n" + chosen.to_csv(index=False, lineterminator="\n")


def lines_frame(runs: pd.DataFrame, smallest: float) -> pd.DataFrame:
    """What the reporting runs say, a row per line: the family by its loss, then the others.

    Args:
        runs: of one sweep, see `run_losses`.
        smallest: smallest difference of interest, nats.

    Returns:
        `line`, `role`, `setting`, `seeds`, `collapsed` (seeds), `passes` (per step), `drift`, `run_ids`; the means
        of LOSSES, of `test` (%, exact texts if rewards trained) and of `also` (reward of `task.also`), each with
        `_half`, half the width of its 95 % interval; the columns of `decide` for the differences from the base; `own`
        and `own_half`, of another setting's difference from its method's line.
    """
    accuracy = runs["test_accuracy"].where(~runs["measure"].isin(OF_UNIT))
    tested = runs["test_exact"].fillna(accuracy)
    runs = runs.assign(test=100 * tested, lost=runs["status"] == "collapsed")
    frame = runs.groupby("line", sort=False).agg(
        role=("role", "first"),
        setting=("setting", "first"),
        seeds=("seed", "size"),
        collapsed=("lost", "sum"),
        passes=("forwards_per_step", "first"),
        drift=("drift", "mean"),
        run_ids=("run_id", " ".join),
    )
    for name in (*LOSSES, "test", "also"):
        frame = frame.join(_mean(runs, name, name))
    base = runs.loc[runs["role"] == BASE, "line"].unique()
    from_base = runs.assign(claim="", gap=_gaps(runs, pd.Series("".join(base), runs.index)))
    frame = frame.join(
        decide(from_base, smallest).drop(columns=["claim", "role"]).set_index("line")
    )
    method = runs["line"].str.partition(",")[0].where(runs["line"].str.contains(","), "")
    frame = frame.join(_mean(runs.assign(gap=_gaps(runs, method)), "gap", "own"))
    order = frame["role"] == OTHER
    return (
        frame.assign(order=order).sort_values(["order", AT_END]).drop(columns="order").reset_index()
    )


def decide(gaps: pd.DataFrame, smallest: float) -> pd.DataFrame:
    """Which lines differ from the base: a row per `claim` and `line`.

    Args:
        gaps: a row per line and seed: `claim`, whose p-values are corrected together; `line`, `role`; `gap`, the
            line's loss minus the base's, NaN without a pair.
        smallest: smallest difference of interest.

    Returns:
        `claim`, `line`, `role`, `gap`, `low`, `high` (95 %, Student), `p_value`, `p_holm` (over the family), `verdict`,
        and `detectable`, the gap that so many seeds of this spread find with a probability of 80 % at the level of
        Holm's first.
    """
    by = ["claim", "line", "role"]
    frame = paired_estimates(gaps["gap"], [gaps[key] for key in by]).reset_index()
    claimed, sets = frame["role"] == FAMILY, frame["claim"]
    p = frame["p_value"].where(claimed)
    frame["p_holm"] = p.groupby(sets).transform(lambda some: holm(list(some)))
    sizes = zip(frame["n"], claimed.groupby(sets).transform("sum"), strict=True)
    frame["detectable"] = [detectable(*size) for size in sizes] * frame["spread"]
    small = (frame["low"] > -smallest) & (frame["high"] < smallest)
    words = np.where(small, f"{OPEN}, less than {smallest:g}", OPEN)
    decided = np.where(frame["estimate"] < 0, BETTER, WORSE)
    frame["verdict"] = np.where(frame["p_holm"] < LEVEL, decided, words)
    frame["verdict"] = frame["verdict"].where(p.notna(), "")
    frame = frame.rename(columns={"estimate": "gap"})
    return frame[[*by, "gap", "low", "high", "p_value", "p_holm", "verdict", "detectable"]]


def _mean(runs: pd.DataFrame, key: str, name: str) -> pd.DataFrame:
    """The mean of a column over each line's runs, with half the width of its interval."""
    found = paired_estimates(runs[key], [runs["line"]])
    half = found["high"] - found["estimate"]
    return pd.DataFrame({name: found["estimate"], f"{name}_half": half})


def _gaps(runs: pd.DataFrame, other: pd.Series) -> pd.Series:
    """Each run's loss minus that of the run of line `other` with the same seed; NaN where there is none."""
    theirs = runs.set_index(["line", "seed"])[AT_END].rename("theirs")
    beside = runs.assign(line=other).join(theirs, on=["line", "seed"])["theirs"]
    return runs[AT_END] - beside.where(other != runs["line"])
