"""The runs of one sweep as tables and figures see them: where each belongs, and which learning rate was chosen.

A panel shows one model, task, precision and variant. A variant is what else the sweep varies (`k = 4, adaptive noise =
off`). The learning rate is chosen per method and variant (`select.cell_runs`). Where a sweep has one method alone, the
values of its k (or of what else varies) share a panel, as methods do elsewhere.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from analysis.logs.frames import FILE_COLUMNS, Frames
from analysis.logs.run_file import LogError
from analysis.paper.names import LABELS, UNTRAINED, method_order, variant_name
from analysis.select.cell_runs import fill, shortfall
from analysis.select.provenance import plain
from zo.differences import differing, in_facet

FACET = ("model", "task", "precision", "variant")
NO_VARIANT = (
    *("model.lr_grid", "model.install", "task.install", "provenance", "sweep", "out", "resume"),
    *("device", "tracking", "eval_tokens", "cells", "threads"),
    *("model.name", "task.name", "precision.name", "optimizer.name", "seed", "lr", "lr_index"),
)
"""Configuration that decides no number, or has a column of its own; with what lies below it."""
SHORT = {"optimizer.k": "k", "optimizer.m": "m", "optimizer.adaptive_noise": "adaptive noise"}
"""Keys in the order of their words, and those words; others follow as they are."""
MOST_VARIANTS = 6  # that share a panel: as many as there are markers


@dataclass(frozen=True)
class Trials:
    """One sweep's runs."""

    sweep: str  # its name
    # one row per run that exists, in the order of FACET, method, lr and seed: the columns of
    # `analysis.select.cell_runs.fill`, where `variant` is in words and `chosen` says that the run has finished, too;
    # `method`; `panel`, its title; `configuration`: runs that agree in panel, method, lr and this differ in nothing
    # but the seed
    table: pd.DataFrame
    frames: Frames  # all runs, with their histories
    notes: tuple[str, ...] = ()  # what is missing, in sentences

    @property
    def typed(self) -> bool:
        """Whether the runs are a grid of the command line, without a file in conf/sweep."""
        commands = self.table["command"]
        return bool((commands != "").all() and not commands.str.contains("sweep=").any())

    @property
    def runs(self) -> pd.DataFrame:
        """The rows of the runs frame behind the table."""
        return self.frames.runs[self.frames.runs["run_id"].isin(self.table["run_id"])]


def of_name(sweep: str, filled: pd.DataFrame, frames: Frames) -> Trials | None:
    """The runs of a sweep's cells, or where it has no manifest those of the W&B group; None without any.

    Args:
        sweep: its name.
        filled: cells of this and maybe other sweeps, see `analysis.select.cell_runs.fill`.
        frames: all runs; a note names those of the group that fill none of the cells.
    """
    named = frames.of(sweep)
    filled = filled[filled["sweep"] == sweep]
    if filled.empty:
        return None if named.empty else _of_runs(sweep, named, frames)
    there = filled[filled["status"].isin(["finished", "collapsed", "unfinished"])]
    return None if named.empty else _trials(sweep, there, frames, notes_of(sweep, filled, frames))


def notes_of(sweep: str, filled: pd.DataFrame, frames: Frames) -> list[str]:
    """Which cells of a sweep lack runs, and which of its runs fill no cell, in sentences."""
    named = frames.of(sweep)
    others = named[~named["run_id"].isin(filled["run_id"])]
    return [
        *(f"{sentence}." for sentence in shortfall(filled)),
        *([_replaced(sweep, others, frames)] if len(others) else []),
        *_made_again(filled, frames),
    ]


def _made_again(filled: pd.DataFrame, frames: Frames) -> Iterator[str]:
    """Which runs stand here in the place of recorded ones, and how they differ."""
    replaced = frames.replaced
    again = {run: replaced[run] for run in filled["run_id"].unique() if run in replaced}
    if again:
        differ = ", ".join(f"{run} ({how})" for run, how in again.items() if how)
        kept = f"Runs made again, in the place of recorded ones: {len(again)}"
        equal = "losses, best steps and test accuracies are equal"
        yield f"{kept}; {f'these differ: {differ}' if differ else equal}."


def _replaced(sweep: str, others: pd.DataFrame, frames: Frames) -> str:
    """Which runs of a sweep fill none of its cells, and in which inputs they differ from those that do."""
    cells = frames.cells[frames.cells["sweep"] == sweep]
    inputs = [json.loads(text) for text in cells.loc[cells["current"], "inputs"]]
    now = {key: {known.get(key) for known in inputs} for known in inputs for key in known}
    older = cells[cells["run_id"].isin(others["run_id"])]["inputs"].map(json.loads)
    changed = {k for known in older for k in {**known, **now} if known.get(k) not in now.get(k, ())}
    why = f"other {' and '.join(sorted(changed))}" if changed else "other code or settings"
    ids = ", ".join(others["run_id"].head(5)) + ", ..." * (len(others) > 5)
    many = f"{len(others)} run{'s' * (len(others) > 1)}"
    return f"Not drawn: {many} under the sweep's name, made earlier with {why} ({ids})."


def _of_runs(sweep: str, runs: pd.DataFrame, frames: Frames) -> Trials:
    """Some runs as cells of a grid of their own."""
    kinds = {f"{name}.name": "object" for name in ("model", "task", "optimizer", "precision")}
    kinds |= {"seed": "int64", "lr": "float64", "steps": "int64"}
    missing = {key: "" if kind == "object" else 0 for key, kind in kinds.items()}
    cells = runs.reindex(columns=["run_id", *kinds]).fillna(missing).astype(kinds)
    cells = cells.rename(columns=lambda key: key.removesuffix(".name"))
    unset = dict.fromkeys(("changed", "line", "role", "command"), "")
    cells = cells.assign(sweep=sweep, variant=_variants(runs), **unset)
    return _trials(sweep, fill(cells, runs), frames)


def meeting(condition: str, frames: Frames) -> Frames:
    """The frames with the runs that meet one `key=value` condition; numbers compare as numbers."""
    key, separator, text = condition.partition("=")
    if not separator or key not in frames.runs.columns:
        raise LogError(f"--where {condition}: wanted is key=value, with a configuration key")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    met = [bool(cell == value) or str(cell) == text for cell in frames.runs[key]]
    return replace(frames, runs=frames.runs[met])


def _trials(sweep: str, filled: pd.DataFrame, frames: Frames, notes: Sequence[str] = ()) -> Trials:
    table = filled.rename(columns={"optimizer": "method"}).reset_index(drop=True)
    table["configuration"] = table["variant"]
    table["chosen"] &= table["status"] == "finished"
    _split_variants(table, [json.loads(text) for text in table["variant"]])
    keys = [*FACET, "method", "lr", "seed", "run_id"]
    table = table.sort_values(keys, kind="stable", ignore_index=True, key=_order)
    table["panel"] = _panels(table)
    return Trials(sweep, table, frames, tuple(notes))


def _panels(table: pd.DataFrame) -> list[str]:
    """What tells each row's panel from the others; its task where it is alone."""
    differing = [key for key in FACET if table[key].nunique() > 1] or ["task"]
    parts = zip(*(table[key].map(LABELS.get(key, str)) for key in differing), strict=True)
    return [" · ".join(filter(None, part)) for part in parts]


def _order(column: pd.Series) -> pd.Series:
    """Methods in the order of the tables, everything else as it is."""
    return column.map(method_order) if column.name == "method" else column


def _split_variants(table: pd.DataFrame, varied: list[dict[str, Any]]) -> None:
    """Write variants in words; settings of a method that is alone become what shares a panel, as far as they fit."""
    trained = [not untrained for untrained in table["method"].isin(UNTRAINED)]
    if table.loc[trained, "method"].nunique() == 1:
        shared: list[str] = []
        places: list[dict[str, Any]] = [{}]
        for key in _ordered({k for v in varied for k in v if not in_facet(k)}):
            found = _different(
                [_part(v, [*shared, key]) for v, t in zip(varied, trained, strict=True) if t]
            )
            if len(found) <= MOST_VARIANTS:
                shared, places = [*shared, key], found
        if len(places) > 1:
            table["method"] = [
                variant_name(
                    method, places.index(_part(v, shared)), len(places), in_words(_part(v, shared))
                )
                if t
                else method
                for method, v, t in zip(table["method"], varied, trained, strict=True)
            ]
            varied = [{k: value for k, value in v.items() if k not in shared} for v in varied]
    table["variant"] = [in_words(variant) for variant in varied]


def _part(variant: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: variant[key] for key in keys if key in variant}


def _different(variants: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Different variants in the order of their values, numbers as numbers."""
    found = {json.dumps(variant): variant for variant in variants}
    return sorted(found.values(), key=lambda v: [(isinstance(x, str), x) for x in v.values()])


def _ordered(keys: Iterable[str]) -> list[str]:
    """The keys of SHORT in its order, then the others by name."""
    known = list(SHORT)
    return sorted(keys, key=lambda key: (known.index(key) if key in known else len(known), key))


def _variants(runs: pd.DataFrame) -> list[str]:
    """What differs between runs beside facet, lr and seed, as JSON text."""
    logged = [key for key in runs.columns if "/" not in key and key not in FILE_COLUMNS]
    left_out = tuple(f"{name}." for name in NO_VARIANT)
    parts = ["model.name", "task.name", "optimizer.name", "precision.name"]
    keys = [key for key in logged if not f"{key}.".startswith(left_out)]
    rows = runs.reindex(columns=[*parts, *keys]).to_dict("records")
    varying = [key for key in differing(rows, parts) if key in keys]
    known = ({k: plain(row[k]) for k in varying if pd.notna(row[k])} for row in rows)
    return [json.dumps(variant, sort_keys=True) for variant in known]


def in_words(variant: Mapping[str, Any]) -> str:
    """A variant as a title shows it: short where a key names itself."""
    return ", ".join(f"{SHORT.get(key, key)} = {_shown(variant[key])}" for key in _ordered(variant))


def _shown(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
