"""Rows of contrasts between a study's settings: on test accuracies, and on values read off validation curves."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.paper.names import method_label
from analysis.select.answers import right_answers
from analysis.select.cell_runs import best_rate, validation_table
from analysis.select.study_runs import Setting, Study
from analysis.stats.contrasts import (
    Estimate,
    choice_interval,
    common_seeds,
    contrast,
    of_examples,
    of_values,
)

ACCURACY, CHANGE = "test accuracy", "change of test accuracy from fp32"
AREA, AT_END, VAL_ACCURACY = "mean validation loss", "last validation loss", "validation accuracy"
POINTS, NATS, DOUBLING = "points", "nats", "points per doubling of k"
AT_STEP = "at a step"  # kind of a row, beside ACCURACY, CHANGE, AREA, AT_END and VAL_ACCURACY
HIDDEN = ["kind", "method", "short"]
"""Columns that say what a row is, for summaries: no file has them."""

Term = tuple[float, Setting]
"""One setting of a contrast behind its weight."""
Value = Callable[[pd.DataFrame, float, float], float]
"""A curve with its horizontal positions as `x`, where the common range starts and where it ends -> a number."""


def accuracy_row(study: Study, claim: str, terms: list[Term], **said: Any) -> dict[str, Any]:
    """A row on test accuracies, of which every example is known; `said`: see `_row`.

    A run that collapsed at the chosen learning rate gets no example right. Each setting chooses its learning rate
    anew in every resample of the seeds, see `analysis.stats.contrasts`.
    """
    grids = [_Grid.of(study.cells(setting)) for _, setting in terms]
    trained = {seed for grid in grids if grid.trains for seed in grid.chosen}
    chosen = [  # a setting without training is one run, at every seed of the others
        grid.chosen
        if grid.trains or not grid.chosen
        else dict.fromkeys(trained, next(iter(grid.chosen.values())))
        for grid in grids
    ]
    weights = [weight for weight, _ in terms]
    seeds = common_seeds(chosen)

    def resampled(pick: tuple[int, ...]) -> Any:
        parts: list[Any] = [
            grid.at(pick) if grid.trains else own.get(pick[0])
            for grid, own in zip(grids, chosen, strict=True)
        ]
        if any(part is None for part in parts):
            return None
        return sum(weight * part for weight, part in zip(weights, parts, strict=True))

    estimate = Estimate()
    if seeds:
        values = contrast(list(zip(weights, chosen, strict=True)))
        choice = choice_interval(seeds, resampled) if len(seeds) > 1 else (float("nan"),) * 2
        estimate = of_examples(values, choice)
    return _row(study, claim, terms, estimate, **said)


@dataclass(frozen=True)
class _Grid:
    """One setting's runs at every learning rate: validation accuracies, and by seed what each run gets right."""

    validation: pd.DataFrame
    right: Mapping[float, Mapping[int, Any]]
    chosen: Mapping[int, Any]
    trains: bool

    @classmethod
    def of(cls, cells: pd.DataFrame) -> "_Grid":
        validation = validation_table(cells)
        sizes = cells.loc[cells["status"] == "finished", "test_n"]
        nothing = np.zeros(int(sizes.max()) if len(sizes) else 0)
        right: dict[float, dict[int, Any]] = {}
        for run in cells[cells["status"].isin(["finished", "collapsed"])].to_dict("records"):
            ended = right_answers(run) if run["status"] == "finished" else nothing
            right.setdefault(run["lr"], {})[int(run["seed"])] = ended
        rate = best_rate(validation)
        trains = bool((cells["steps"] > 0).any())
        return cls(validation, right, {} if rate is None else right[rate], trains)

    def at(self, pick: tuple[int, ...]) -> Any:
        """Mean over resampled seeds per example, at the rate that they choose; None if a seed has no run there."""
        rate = best_rate(self.validation.reindex(columns=list(pick)))
        values = self.right.get(rate, {}) if rate is not None else {}
        if not set(pick) <= set(values):
            return None
        return sum(values[seed] for seed in pick) / len(pick)


def curve_row(
    study: Study,
    claim: str,
    terms: list[Term],
    quantity: str,
    axis: str,
    value: Value,
    unit: str = NATS,
    **said: Any,
) -> dict[str, Any]:
    """A row on what is read off validation curves, over the range of `axis` that all runs of the contrast have.

    Of losses the lower one is ahead. The choice of the learning rate is left out of these intervals. Where a run
    collapsed, or what is read is not finite, there is no estimate: the remark says who is ahead by rank, a collapse
    being last.
    """
    runs = [study.runs(setting) for _, setting in terms]
    lost = [dict.fromkeys(study.collapsed(setting), -np.inf) for _, setting in terms]
    seeds = common_seeds([{**of_seed, **gone} for of_seed, gone in zip(runs, lost, strict=True)])
    curves = [
        {s: study.curve(of_seed[s]["run_id"]) for s in seeds if s in of_seed} for of_seed in runs
    ]
    every = [curve for of_seed in curves for curve in of_seed.values()]
    said = {"quantity": quantity, "kind": quantity, "unit": unit} | said
    if any(curve.empty for curve in every):
        said["remark"] = "the evaluations of its runs were not kept"
        return _row(study, claim, terms, Estimate(), **said)
    start = max((float(curve[axis].min()) for curve in every), default=0.0)
    end = min((float(curve[axis].max()) for curve in every), default=0.0)
    sign = 1 if unit == POINTS else -1
    numbers = []
    for (weight, _), of_seed, gone in zip(terms, curves, lost, strict=True):
        read = {s: sign * value(c.assign(x=c[axis]), start, end) for s, c in of_seed.items()}
        ranked = {s: number if np.isfinite(number) else -np.inf for s, number in read.items()}
        numbers.append((weight, ranked | gone))
    values: Any = contrast(numbers)
    values = np.where(np.isnan(values), 0.0, values)  # two collapses are alike
    undecided = int((~np.isfinite(values)).sum())
    estimate = Estimate(n=len(values)) if undecided else of_values(values)
    if undecided:
        said["remark"] = (
            f"not finite in {undecided} of {len(values)} seeds; with a collapse last, "
            f"ahead in {int((values > 0).sum())}, behind in {int((values < 0).sum())}"
        )
    if axis == "forwards" and every:
        where = f"over {start:,.0f} to" if quantity == AREA else "at"
        said["quantity"] += f", {where} {end:,.0f} forward passes"
    return _row(study, claim, terms, estimate, **said)


def area(curve: pd.DataFrame, start: float, end: float) -> float:
    """Mean validation loss over the range, the curve being straight between its points; nats."""
    if end <= start:
        return float("nan")
    points = np.asarray(curve["x"], float)
    at = np.concatenate([[start], points[(points > start) & (points < end)], [end]])
    heights = np.interp(at, points, np.asarray(curve["loss"], float))
    return float(((heights[1:] + heights[:-1]) / 2 * np.diff(at)).sum() / (end - start))


def at_end(curve: pd.DataFrame, start: float, end: float) -> float:
    """Validation loss at the end of the range; nats."""
    return float(np.interp(end, curve["x"], curve["loss"]))


def accuracy_at_end(curve: pd.DataFrame, start: float, end: float) -> float:
    """Validation accuracy at the end of the range; %."""
    return float(100 * np.interp(end, curve["x"], curve["accuracy"]))


def at_step(step: int) -> Value:
    """Validation loss at a step that has an evaluation; nats."""
    return lambda curve, start, end: float(curve.loc[curve["step"] == step, "loss"].iloc[0])


def common_steps(study: Study, terms: list[Term]) -> list[int]:
    """Evaluations after the first step that all runs of the contrast have."""
    curves = [study.curve(run["run_id"]) for _, s in terms for run in study.runs(s).values()]
    steps = [set(curve["step"].astype(int)) for curve in curves]
    return sorted(set.intersection(*steps) - {0}) if steps else []


def _row(
    study: Study,
    claim: str,
    terms: list[Term],
    estimate: Estimate,
    what: str | None = None,
    quantity: str = ACCURACY,
    unit: str = POINTS,
    remark: str = "",
    claimed: bool = True,
    kind: str = ACCURACY,
    short: str = "",
) -> dict[str, Any]:
    """A row; `claimed` says whether it is a claim, with a verdict, and part of the claim's family of tests."""
    settings = [setting for _, setting in terms]
    equal = "equal in all seeds: no interval" * bool(estimate.n > 1 and np.isnan(estimate.low))
    reasons = [*map(study.why, settings), remark, "" if remark else equal]
    labels = [method_label(setting.method) for setting in settings]
    return {
        "claim": claim,
        "what": what or " against ".join(labels),
        "kind": kind,
        "method": settings[0].method,
        "short": short or what or f"against {labels[-1]}",
        "precision": settings[0].precision,
        "quantity": quantity,
        "unit": unit,
        **asdict(estimate),
        "claimed": claimed,
        "remark": "; ".join(reason for reason in dict.fromkeys(reasons) if reason),
    }
