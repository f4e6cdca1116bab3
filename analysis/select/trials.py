"""The runs of one sweep as the figures see them: where each belongs, and which learning rate was chosen.

A *facet* is what a panel shows: one model, task, precision and variant. A variant is what else the sweep
varies (`k = 4, adaptive noise = off`). The learning rate is chosen per method and variant (`select.cell_runs`). Where a
sweep has one method alone, the values of its k (or of what else varies) share a panel, as methods do elsewhere.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.frames import FILE_COLUMNS
from analysis.paper.names import UNTRAINED, method_order, model_label, task_label, variant_name
from analysis.select.cell_runs import chosen_lr, fill, shortfall

History = Callable[[str, Sequence[str]], pd.DataFrame]
FACET = ("model", "task", "precision", "variant")
# Configuration that names no variant: the facet's own keys, and what decides no number.
NO_VARIANT = (
    *(
        "model.name",
        "model.lr_grid",
        "model.install",
        "task.name",
        "task.install",
        "precision.name",
    ),
    *("optimizer.name", "seed", "lr", "lr_index", "provenance", "sweep", "out", "resume", "device"),
    *("threads", "tracking", "eval_tokens", "cells"),
)
SHORT = {"optimizer.k": "k", "optimizer.m": "m", "optimizer.adaptive_noise": "adaptive noise"}
ORDER = ("optimizer.k", "optimizer.adaptive_noise")  # what can share a panel, the first that varies
MOST_VARIANTS = 6  # that share a panel: as many as there are markers
FOLLOWS = {"optimizer.k": ("optimizer.m",)}  # the paper's m is k or k + 1


@dataclass(frozen=True)
class Trials:
    """One sweep's runs.

    Attributes:
        sweep: its name.
        table: one row per run that exists, in the order of facet, method, lr and seed: the columns of
            `analysis.select.cell_runs.fill`, where `variant` is in words, and `method`; `k` and `adaptive_noise`, where
            they vary; `chosen`: its lr is the method's in its facet; `configuration`: what else was set: runs
            that agree in facet, method, lr and this differ in nothing but the seed.
        history: run id, keys -> `step` and these keys of the run, one row per step in the order of the steps.
        notes: what is missing, in sentences.
    """

    sweep: str
    table: pd.DataFrame
    history: History
    notes: tuple[str, ...] = ()

    def facets(self) -> Iterator[tuple[dict[str, str], pd.DataFrame]]:
        """Each facet's names and rows."""
        for names, rows in self.table.groupby(list(FACET), sort=False):
            yield dict(zip(FACET, map(str, names), strict=True)), rows

    @property
    def methods(self) -> list[str]:
        """The methods, in the order of the tables."""
        return sorted(self.table["method"].unique(), key=method_order)


def of_sweep(
    sweep: str, filled: pd.DataFrame, runs: pd.DataFrame, history: History
) -> Trials | None:
    """The runs of a sweep of conf/sweep; None without any.

    Args:
        sweep: its name.
        filled: its cells, see `analysis.select.cell_runs.fill`.
        runs: the runs frame; runs that were logged under the sweep's name but fill none of its cells (because
            their configuration is another) are drawn only if no run that trains fills one; a note says so.
        history: see `Trials`.
    """
    there = filled[filled["status"].isin(["finished", "collapsed", "unfinished"])]
    others = runs[(runs["group"] == sweep) & ~runs["run_id"].isin(filled["run_id"])]
    notes = [f"{sentence}." for sentence in shortfall(filled)]
    if there.empty and others.empty:
        return None
    if there["optimizer"].isin(UNTRAINED).all() and len(others):
        named = runs[runs["group"] == sweep]
        notes = [
            f"None of the sweep's {len(filled)} cells that train has been run. Drawn are the {len(named)} runs that "
            "were logged under its name, with another configuration."
        ]
        return _trials(sweep, fill(cells_of(named), named), history, notes)
    if len(others):
        notes.append(
            f"Not drawn: {len(others)} runs logged under the sweep's name with another configuration."
        )
    return _trials(sweep, there, history, notes)


def of_group(group: str, runs: pd.DataFrame, history: History) -> Trials | None:
    """The runs of a W&B group that is no sweep of conf/sweep; None without any."""
    rows = runs[runs["group"] == group]
    if rows.empty:
        return None
    return _trials(group, fill(cells_of(rows), rows), history, ())


def cells_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs as cells of a grid of their own, see `analysis.select.sweep_cells.cells`."""

    def column(key: str, missing: str | float) -> pd.Series:
        return runs.reindex(columns=[key])[key].fillna(missing)

    frame = pd.DataFrame(
        {
            "sweep": runs["group"],
            "run_id": runs["run_id"],
            **{
                name: column(f"{name}.name", "").astype(object)
                for name in ("model", "task", "optimizer", "precision")
            },
            "seed": column("seed", 0).astype("int64"),
            "lr": column("lr", 0.0).astype("float64"),
            "steps": column("steps", 0).astype("int64"),
            "variant": _variants(runs),
            "command": "",
        }
    )
    return frame.reset_index(drop=True)


def facet_title(facet: dict[str, str], others: Sequence[dict[str, str]]) -> str:
    """What tells a facet from the others; its task where it is alone."""
    labels = {"model": model_label, "task": task_label}
    differing = [key for key in FACET if len({other[key] for other in others}) > 1]
    parts = [labels.get(key, str)(facet[key]) for key in differing or ["task"]]
    return " · ".join(part for part in parts if part)


def history_by_run(history: pd.DataFrame) -> History:
    """The history of each run out of one frame; an empty frame for a run without any."""
    groups = {str(run_id): rows for run_id, rows in history.groupby("run_id", sort=False)}
    return lambda run_id, keys: groups.get(run_id, history.iloc[:0]).reindex(
        columns=["step", *keys]
    )


def _trials(sweep: str, filled: pd.DataFrame, history: History, notes: Sequence[str]) -> Trials:
    table = filled.rename(columns={"optimizer": "method"}).reset_index(drop=True)
    varied = [json.loads(text) for text in table["variant"]]
    table["k"] = [_number(variant.get("optimizer.k")) for variant in varied]
    table["adaptive_noise"] = [
        _number(variant.get("optimizer.adaptive_noise")) for variant in varied
    ]
    table["configuration"] = table["variant"]
    table["chosen"] = False
    for _, rows in table.groupby([*FACET, "method"], sort=False):
        lr = chosen_lr(rows)
        table.loc[rows.index[(rows["lr"] == lr) & (rows["status"] == "finished")], "chosen"] = True
    _split_variants(table)
    order = {name: i for i, name in enumerate(sorted(table["method"].unique(), key=method_order))}
    table["order"] = table["method"].map(order)
    table = table.sort_values([*FACET, "order", "lr", "seed", "run_id"], kind="stable")
    table = table.drop(columns="order").reset_index(drop=True)
    return Trials(sweep, table, history, tuple(notes))


def _split_variants(table: pd.DataFrame) -> None:
    """Write variants in words; those of a method that is alone become what shares a panel."""
    varied = [json.loads(text) for text in table["variant"]]
    series: list[str] = []
    trained = set(table["method"]) - {*UNTRAINED}
    keys = [key for key in ORDER if len({_shown(v[key]) for v in varied if key in v}) > 1]
    if len(trained) == 1 and keys:
        key = keys[0]
        series = sorted({_shown(v[key]) for v in varied if key in v}, key=_numeric)
    if 1 < len(series) <= MOST_VARIANTS:
        places = {value: i for i, value in enumerate(series)}
        table["method"] = [
            variant_name(
                method, places[_shown(v[key])], len(series), f"{SHORT[key]} = {_shown(v[key])}"
            )
            if key in v
            else method
            for method, v in zip(table["method"], varied, strict=True)
        ]
        varied = [
            {k: value for k, value in v.items() if k not in (key, *FOLLOWS.get(key, ()))}
            for v in varied
        ]
    table["variant"] = [_words(variant) for variant in varied]


def _numeric(text: str) -> tuple[float, str]:
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text


def _variants(runs: pd.DataFrame) -> list[str]:
    """What varies within a method beside facet, lr and seed, as JSON text."""
    keys = [
        key
        for key in runs.columns
        if "/" not in key
        and key not in FILE_COLUMNS
        and not any(key == name or key.startswith(f"{name}.") for name in NO_VARIANT)
    ]
    parts = ["optimizer.name", "model.name", "task.name", "precision.name"]
    texts = pd.Series("{}", index=range(len(runs)))
    for _, rows in runs.reset_index(drop=True).groupby(parts, dropna=False):
        varying = [key for key in keys if rows[key].astype(str).nunique() > 1]
        for i, values in zip(rows.index, rows[varying].itertuples(index=False), strict=True):
            known = {key: _plain(value) for key, value in zip(varying, values, strict=True)}
            set_ = {key: value for key, value in known.items() if value is not None}
            texts[i] = json.dumps(set_, sort_keys=True)
    return list(texts)


def _words(variant: dict[str, Any]) -> str:
    """A variant as a title shows it: short where a key names itself."""
    keys = [key for key in SHORT if key in variant] + [key for key in variant if key not in SHORT]
    return ", ".join(f"{SHORT.get(key, key)} = {_shown(variant[key])}" for key in keys)


def _plain(value: Any) -> Any:
    """A frame's value as JSON knows it."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        return None if pd.isna(value) else int(value) if value.is_integer() else value
    return value


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _shown(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
