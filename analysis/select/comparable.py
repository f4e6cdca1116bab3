"""The runs of one sweep that can stand in one table: one model, task, precision and seed, a learning rate per run."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from analysis.logs.frames import FILE_COLUMNS, Frames
from analysis.logs.run_file import LogError
from analysis.select.trials import NO_NUMBER, Trials, below, of_runs

NOTHING = "nothing"  # what a run logs that does not log a key
SHARED = ("model", "task", "precision", "seed")  # must agree between methods
SAME_EXAMPLES = ("best/val_n", "best/test_n", "test/labels")  # of all finished runs


def one_grid(
    frames: Frames, sweep: str, where: Sequence[str] = (), sources: Sequence[Any] = ()
) -> Trials:
    """The runs of a W&B group that meet the `key=value` conditions; `sources` are named in the message."""
    runs = frames.runs[frames.runs["group"] == sweep]
    for condition in where:
        runs = runs if runs.empty else _meeting(condition, runs)
    if runs.empty:
        conditions = "".join(f" with {condition}" for condition in where)
        raise LogError(
            f"no run of sweep {sweep}{conditions} among the {len(frames.runs)} W&B runs below "
            f"{', '.join(map(str, sources))}: make them with `python train.py sweep={sweep}`"
        )
    _check(runs)
    return of_runs(sweep, runs, frames)


def _meeting(condition: str, runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of which a configuration key has a value; numbers compare as numbers."""
    key, separator, text = condition.partition("=")
    if not separator or key not in runs.columns:
        raise LogError(f"--where {condition}: wanted is key=value, with a configuration key")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return runs[[bool(cell == value) or str(cell) == text for cell in runs[key]]]


def _check(runs: pd.DataFrame) -> None:
    """Refuse runs that differ in what a table does not show."""
    nameless = runs[runs.reindex(columns=["optimizer.name"])["optimizer.name"].isna()]
    if len(nameless):
        raise LogError(f"run {nameless['run_id'].iloc[0]} does not log its optimizer.name")
    logged = [key for key in runs.columns if "/" not in key and key not in FILE_COLUMNS]
    configuration = [key for key in logged if not below(key, (*NO_NUMBER, "lr", "lr_index"))]
    for method, of_method in runs.groupby("optimizer.name"):
        _check_equal(of_method, configuration, f"the runs of {method}")
        twice = of_method[of_method["lr"].duplicated(keep=False)]
        if len(twice):
            cell = f"{method} at lr {twice['lr'].iloc[0]:g}"
            raise LogError(f"runs {' and '.join(twice['run_id'])} are the same cell, {cell}, twice")
    _check_equal(
        runs, [key for key in configuration if below(key, SHARED)], "the runs of the sweep"
    )
    finished = runs[runs["status"] == "finished"]
    _check_equal(finished, [key for key in SAME_EXAMPLES if key in runs], "the finished runs")


def _check_equal(runs: pd.DataFrame, keys: Iterable[str], whose: str) -> None:
    for key in keys:
        values = sorted({_shown(value) for value in runs[key]})
        if len(values) > 1:
            choice = next(value for value in values if value != NOTHING)
            advice = "" if "/" in key else f"; choose one with --where {key}={choice}"
            short = ", ".join(v if len(v) <= 40 else f"{v[:36]}..." for v in values)
            raise LogError(f"{whose} differ in {key}: {short}{advice}")


def _shown(value: Any) -> str:
    """A value as the user typed it: a column with gaps has turned its integers into floats."""
    if pd.isna(value):
        return NOTHING
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
