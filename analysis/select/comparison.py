"""A comparison: the settings that each line chose by its tuning runs, and what the chosen ones lose after the budget.

A sweep of lines (`zo.config.arms`) has a row per line here. A line's loss is the validation loss after the whole
budget. A collapsed run counts with the loss of the untrained model, or with its own last loss if that is higher.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.fragments import ENDED
from analysis.logs.frames import Frames
from analysis.logs.history import EVALUATED, evaluations
from analysis.logs.run_file import LogError
from analysis.paper.names import BACKPROPAGATING
from analysis.select.cells import OF_UNIT, pending, ranked, shortfall
from analysis.stats.inference import (
    LEVEL,
    half_width,
    holm,
    minimum_detectable_effect,
    paired_estimates,
)
from analysis.stats.passes import Arrival, area, passes_to, ratios

BASE, FAMILY, OTHER = "base", "family", "other"
SHARES = (12.5, 25, 50, 100)
"""Per cent of the budget at which losses are read, at the nearest evaluation within a factor of NEAR."""

NEAR = 1.2
SHARED = {share: f"loss_{share:g}" for share in SHARES}
LOSSES = list(SHARED.values())
AT_END, AREA = LOSSES[-1], "area"
TIE = 2e-5  # nats between settings of which neither is called the better one
BETTER, WORSE, OPEN = "better", "worse", "not decided"
NO_RUN: dict[str, Any] = {"setting": "{}", "seeds": 0, "collapsed": 0, "passes": 0, "run_ids": ""}
"""What a line has all of whose runs failed."""


def run_losses(cells: pd.DataFrame, frames: Frames) -> pd.DataFrame:
    """The runs that have ended, of filled cells with lines, with columns of what they lost.

    Returns:
        `setting` (what was tuned or set, as JSON text, the learning rate among it); LOSSES; AREA, the mean loss over
        log passes; `passes_per_step`, of which a backward pass counts as two; `pass_ms`; and of each of the `levels_of`
        the cells the fields of `Arrival`, with the level's number behind their names.
    """
    ended = cells[cells["status"].isin(ENDED) & (cells["line"] != "")]
    several = {(run["model"], run["task"], _of_task(run)) for run in ended.to_dict("records")}
    if len(several) > 1:
        named = " and ".join(map(str, sorted(several)[:2]))
        raise LogError(f"lines are of one model and task, but {cells['sweep'].iloc[0]} has {named}")
    untrained = ended.loc[ended["steps"] == 0, "val_loss"].max()
    levels, budget = levels_of(cells), budget_of(ended)
    backwards = 2 * ended["optimizer"].isin(BACKPROPAGATING)
    ended = ended.assign(passes_per_step=ended["forwards_per_step"] + backwards)
    runs = ended.to_dict("records")
    rows = [_measures(_curve(run, frames, untrained), run, budget, levels) for run in runs]
    columns = list(dict.fromkeys([*LOSSES, AREA, "pass_ms", *(key for row in rows for key in row)]))
    losses = pd.DataFrame(rows, columns=columns, index=ended.index, dtype=float)
    ended = ended.assign(setting=[_setting(run) for run in runs]).join(losses)
    twice = ended[ended.duplicated(["line", "setting", "seed"], keep=False)]
    if len(twice):
        first = twice.iloc[0][["line", "setting", "seed"]]
        mine = twice[(twice[[*first.index]] == first).all(axis=1)]
        of = [f"{run} ({how})" for run, how in zip(mine["run_id"], mine["precision"], strict=True)]
        raise LogError(
            f"{first['line']} of {twice['sweep'].iloc[0]} has {len(of)} runs of one setting and seed,"
            f" {' and '.join(of[:2])}; give each precision a sweep of its own"
        )
    return ended


def _of_task(run: Mapping[Any, Any]) -> str:
    """What a cell varies of its model and task, as JSON text."""
    variant = json.loads(run["variant"])
    return json.dumps({k: v for k, v in variant.items() if k.startswith(("model.", "task."))})


def evaluated(frame: pd.DataFrame) -> list[str]:
    """Those of LOSSES that a line which trains has."""
    trained = frame[frame["passes"] > 0]
    return [key for key in LOSSES if trained[key].notna().any()]


def levels_of(cells: pd.DataFrame) -> list[float]:
    """The losses of a sweep whose passes are counted, nats; none if none were fixed."""
    texts = cells.get("levels", pd.Series(dtype=object)).dropna()
    return list(json.loads(texts.iloc[0])) if len(texts) else []


def budget_of(runs: pd.DataFrame) -> float:
    """Forward passes of a run of the base, or of any run where the base has none; NaN without one that trains."""
    trained = runs[runs["steps"] > 0]
    base = trained[trained["role"] == BASE]
    some = base if len(base) else trained
    return float((some["steps"] * some["forwards_per_step"]).max())


def _curve(run: Mapping[Any, Any], frames: Frames, untrained: float) -> pd.DataFrame:
    """A run's `step` and `loss`; behind its last evaluation a collapsed one has that of the untrained model."""
    curve = evaluations(frames.history.one(run["run_id"], EVALUATED), by="loss")
    at = [run["steps"] * share / 100 for share in SHARES]
    if run["status"] == "collapsed":
        if np.isnan(untrained):
            known = "and the loss of the untrained model is not known: run zero_shot"
            raise LogError(f"run {run['run_id']} of {run['sweep']} collapsed, {known}")
        lost = float(np.nanmax([untrained, *curve["loss"][np.isfinite(curve["loss"])].tail(1)]))
        end = pd.DataFrame({"step": [float(run["steps"])], "loss": [lost]})
        beyond = [s for s in at if curve.empty or s > curve["step"].max()]
        end = pd.concat([end, pd.DataFrame({"step": beyond, "loss": lost})])
        curve = pd.concat([curve[["step", "loss"]], end], ignore_index=True)
    if curve.empty:
        raise LogError(f"the evaluations of run {run['run_id']} are not there")
    return curve[["step", "loss"]].drop_duplicates("step", keep="last")


def _measures(
    curve: pd.DataFrame, run: Mapping[Any, Any], budget: float, levels: Sequence[float]
) -> dict[str, float]:
    """What `run_losses` adds of one run."""
    loss = curve["loss"].to_numpy()
    if not run["steps"]:
        return dict.fromkeys([*LOSSES, AREA], float(loss[-1]))
    share = 100 * curve["step"].to_numpy(float) / run["steps"]
    per_step = run["passes_per_step"]
    found = {"pass_ms": run["step_ms"] / per_step}
    for wanted, name in SHARED.items():
        i = np.abs(share - wanted).argmin()
        found[name] = loss[i] if wanted / NEAR < share[i] < wanted * NEAR else float("nan")
    passes = pd.DataFrame({"forwards": curve["step"].to_numpy(float) * per_step, "loss": loss})
    passes = passes[share > 0]
    found[AREA] = area(passes) if len(passes) > 1 else float("nan")
    for i, level in enumerate(levels):
        arrival = passes_to(passes, level, budget)._asdict()
        found |= {f"{key}_{i}": float(value) for key, value in arrival.items()}
    return found


def _setting(run: Mapping[Any, Any]) -> str:
    tuned = {"lr": run["lr"], **json.loads(run["variant"])} if run["steps"] else {}
    return json.dumps(tuned, sort_keys=True)


def criterion_of(cells: pd.DataFrame) -> tuple[str, str]:
    """By which column of `run_losses` settings are chosen, in words, too: by the whole curve where levels are fixed."""
    return (AREA, "as a mean over log passes") if levels_of(cells) else (AT_END, "after the budget")


def choices(runs: pd.DataFrame, best: int = 1, by: str = AT_END) -> pd.DataFrame:
    """The best settings of each line: `line`, `setting`, `loss`, `seeds`, `tried` (runs), `edge` and `tie`.

    They are `ranked` by the column `by`. `edge` names what has its smallest or largest value of those tried, `tie`
    what has another value in a setting whose loss is within TIE, joined by commas.
    """
    rows = []
    for line, mine in runs.groupby("line"):
        means: Any = ranked(mine.fillna({by: np.inf}), "setting", by).replace(np.inf, np.nan)
        seeds = mine.groupby("setting")["seed"].nunique()
        tried = _values(seeds.index).select_dtypes("number")
        low, high = tried.min(), tried.max()
        for setting, loss in means.head(best).items():
            own = _values([setting]).iloc[0].reindex(tried.columns)
            edges = tried.columns[(low < high) & ((own == low) | (own == high))]
            several = _values(means.index[(means - loss).abs() < TIE]).astype(str).nunique() > 1
            said = {"line": line, "setting": setting, "loss": loss, "seeds": seeds[setting]}
            said |= {"tried": len(mine), "edge": ", ".join(edges)}
            rows.append(said | {"tie": ", ".join(sorted(several.index[several]))})
    names = ["line", "setting", "loss", "seeds", "tried", "edge", "tie"]
    return pd.DataFrame(rows, columns=names)


def _values(settings: Iterable[Any]) -> pd.DataFrame:
    """A row per setting, a column per key, without what is in front of its last dot."""
    values = pd.DataFrame([json.loads(text) for text in settings])
    return values.rename(columns=lambda key: key.rpartition(".")[2])


def settings_file(sweep: str, cells: pd.DataFrame, frames: Frames, said: str, best: int) -> str:
    """The text of results/settings/SWEEP.csv: the `best` settings of each line, chosen by the runs of tuning cells.

    Raises:
        LogError: If tuning runs lack: every line gets the same number.
    """
    if lacking := shortfall(cells):
        raise LogError(f"no settings for {sweep}: {'; '.join(lacking)}")
    runs = run_losses(cells, frames)
    by, words = criterion_of(cells)
    chosen = choices(runs[runs["steps"] > 0], best, by).round({"loss": 6})
    head = f"# Written by `zo choose {sweep}`: "
    head += f"of each line the {best} of lowest loss {words}.\n# {said}\n"
    return head + chosen.to_csv(index=False, lineterminator="\n")


def ended_frame(cells: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Of each line how many of its runs have ended; and why nothing is decided, "" if all have ended.

    Whoever looks at differences before may stop where they please.
    """
    counts = (~pending(cells)).groupby(cells["line"], sort=False).agg(ended="sum", runs="size")
    ended, runs = counts["ended"].sum(), counts["runs"].sum()
    why = f"{ended} of {runs} runs have ended; no loss and no verdict before all have."
    return counts.reset_index(), why * bool(ended < runs)


def lines_frame(runs: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """What the reporting runs say, a row per line: the family by its loss, then the others.

    A line of the family whose runs all failed has a row, and is a test of the family.

    Args:
        runs: see `run_losses`.
        cells: of one sweep, whose runs these are.

    Returns:
        `line`, `role`, `setting`, `seeds`, `pairs` (those that the base has, too), `collapsed` (seeds), `passes` (per
        step), `pass_ms`, `drift`, `run_ids`; the
        means of LOSSES, of `test` (%, exact texts if rewards trained), of `macro_f1` (%, of the test) and of `also`
        (reward of `task.also`), each with `_half`, half the width of its 95 % interval; the columns of `decide` for the
        differences from the base; `own` and `own_half`, of another setting's difference from its method's line; and of
        each level the columns of `ratios` and `p_holm`, with the level's number behind their names.

    Raises:
        LogError: If a run has not ended, or a line has several settings.
    """
    if why := ended_frame(cells)[1]:
        raise LogError(why)
    for line, settings in runs.groupby("line")["setting"].unique().items():
        if len(settings) > 1:
            raise LogError(
                f"{line} has runs of several settings, {' and '.join(sorted(settings))}; remove one's lines from the"
                f" manifest out/sweeps/{cells['sweep'].iloc[0]}.jsonl"
            )
    accuracy = runs["test_accuracy"].where(~runs["measure"].isin(OF_UNIT))
    tested = runs["test_exact"].fillna(accuracy)
    f1 = 100 * runs["test_macro_f1"]
    runs = runs.assign(test=100 * tested, macro_f1=f1, lost=runs["status"] == "collapsed")
    frame = runs.groupby("line", sort=False).agg(
        role=("role", "first"),
        setting=("setting", "first"),
        seeds=("seed", "size"),
        collapsed=("lost", "sum"),
        passes=("passes_per_step", "first"),
        pass_ms=("pass_ms", "median"),
        drift=("drift", "mean"),
        run_ids=("run_id", " ".join),
    )
    failed = cells[(cells["role"] == FAMILY) & ~cells["line"].isin(runs["line"])]
    failed = failed.drop_duplicates("line").set_index("line")[["role"]]
    frame = pd.concat([frame, failed.assign(**NO_RUN)])
    for name in (*LOSSES, "test", "macro_f1", "also"):
        frame = frame.join(_mean(runs, name, name))
    base = "".join(runs.loc[runs["role"] == BASE, "line"].unique())
    from_base = runs.assign(claim="", gap=_gaps(runs, pd.Series(base, runs.index)))
    from_base = pd.concat([from_base, failed.reset_index().assign(claim="", gap=np.nan)])
    frame = frame.join(
        decide(from_base, float(cells["equivalence_margin"].iloc[0]))
        .drop(columns=["claim", "role"])
        .set_index("line")
    )
    method = runs["line"].str.partition(",")[0].where(runs["line"].str.contains(","), "")
    frame = frame.join(_mean(runs.assign(gap=_gaps(runs, method)), "gap", "own"))
    for i in range(runs.columns.str.fullmatch(r"passes_\d+").sum()):
        frame = frame.join(_to_level(runs[runs["steps"] > 0], i, base, failed["role"]))
    by_loss = frame.sort_values(AT_END, kind="stable").reset_index()
    other = by_loss["role"] == OTHER
    return pd.concat([by_loss[~other], by_loss[other]], ignore_index=True)


def _to_level(runs: pd.DataFrame, i: int, base: str, failed: pd.Series) -> pd.DataFrame:
    """`ratios` of one level, their p-values corrected over the family, with the roles of lines without a run."""
    at = {f"{key}_{i}": key for key in Arrival._fields}
    pairs = runs.assign(seed=runs["seed"].where(_same_examples(runs, base)))
    found = ratios(pairs[["line", "seed", *at]].rename(columns=at), base).drop(columns="seeds")
    claimed = pd.concat([runs.groupby("line", sort=False)["role"].first(), failed]) == FAMILY
    found = found.reindex(claimed.index)
    found["p_holm"] = _corrected(found["p_value"].where(claimed), claimed)
    return found.add_suffix(f"_{i}")


def _corrected(p: pd.Series, claimed: pd.Series) -> pd.Series:
    """Holm's p-values of a family. Its lines without a p-value count as tests, too: as those of the largest."""
    return pd.Series(holm(list(p.fillna(1.0).where(claimed))), p.index).where(p.notna())


def decide(gaps: pd.DataFrame, smallest: float) -> pd.DataFrame:
    """Which lines differ from the base: a row per `claim` and `line`.

    Args:
        gaps: a row per line and seed: `claim`, whose p-values are corrected together; `line`, `role`; `gap`, the
            line's loss minus the base's, NaN without a pair.
        smallest: smallest difference of interest.

    Returns:
        `claim`, `line`, `role`, `pairs`, `gap`, `low`, `high` (95 %, Student), `p_value`, `p_holm` (over the family),
        `verdict`, `holm_half`, half the width of the interval at Holm's level of the line, which has no 0 if a verdict
        says so; and `minimum_detectable_effect`, the gap that so many seeds of this spread find with a probability of
        80 % at the level of Holm's first.
    """
    by = ["claim", "line", "role"]
    frame = paired_estimates(gaps["gap"], [gaps[key] for key in by]).reset_index()
    claimed, sets = frame["role"] == FAMILY, frame["claim"]
    p = frame["p_value"].where(claimed)
    frame["p_holm"] = p.groupby(sets).transform(lambda some: _corrected(some, claimed[some.index]))
    sizes = zip(frame["n"], claimed.groupby(sets).transform("sum"), strict=True)
    frame["minimum_detectable_effect"] = [
        minimum_detectable_effect(*size) for size in sizes
    ] * frame["spread"]
    small = (frame["low"] > -smallest) & (frame["high"] < smallest)
    words = np.where(small, f"{OPEN}, less than {smallest:g}", OPEN)
    decided = np.where(frame["estimate"] < 0, BETTER, WORSE)
    frame["verdict"] = np.where(frame["p_holm"] < LEVEL, decided, words)
    frame["verdict"] = frame["verdict"].where(p.notna(), "")
    rejected = (frame["p_holm"] < LEVEL).groupby(sets).transform("sum")
    rank = p.groupby(sets).rank(method="first").clip(upper=rejected + 1)
    level = LEVEL / (claimed.groupby(sets).transform("sum") - rank + 1)
    frame["holm_half"] = half_width(frame, level.fillna(LEVEL))
    frame = frame.rename(columns={"estimate": "gap", "n": "pairs"})
    measures = ("pairs", "gap", "low", "high", "holm_half", "p_value", "p_holm", "verdict")
    return frame[[*by, *measures, "minimum_detectable_effect"]]


def _mean(runs: pd.DataFrame, key: str, name: str) -> pd.DataFrame:
    """The mean of a column over each line's runs, with half the width of its interval."""
    found = paired_estimates(runs[key], [runs["line"]])
    half = found["high"] - found["estimate"]
    return pd.DataFrame({name: found["estimate"], f"{name}_half": half})


def _gaps(runs: pd.DataFrame, other: pd.Series) -> pd.Series:
    """Each run's loss minus that of the run of line `other` with the same seed and examples, NaN without one.

    The untrained model has no seed: minus the mean of the other's runs.
    """
    means = other.map(runs.groupby("line")[AT_END].mean())
    gaps = runs[AT_END] - _theirs(runs, other)[AT_END].where(runs["steps"] > 0, means)
    return gaps.where((other != runs["line"]) & _same_examples(runs, other))


def _theirs(runs: pd.DataFrame, other: Any) -> pd.DataFrame:
    """What the run of line `other` with the same seed says, beside each run; NaN without one."""
    of_line = runs.set_index(["line", "seed"])[[AT_END, "labels", "test_n"]]
    return runs[["seed"]].assign(line=other).join(of_line, on=["line", "seed"])


def _same_examples(runs: pd.DataFrame, other: Any) -> pd.Series:
    """Whether each run was tested on the examples of the run of line `other` with the same seed, as far as logged."""
    own, theirs = (frame[["labels", "test_n"]] for frame in (runs, _theirs(runs, other)))
    return ~(own.ne(theirs) & own.notna() & theirs.notna()).any(axis=1)
