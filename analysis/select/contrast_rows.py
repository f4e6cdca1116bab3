"""Rows of contrasts between a study's settings: on test accuracies, and on values read off validation curves."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
from scipy.integrate import trapezoid

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
from analysis.stats.intervals import NAN

ACCURACY, CHANGE = "test accuracy", "change of test accuracy from fp32"
AREA, AT_END, VAL_ACCURACY = "mean validation loss", "last validation loss", "validation accuracy"
POINTS, NATS, DOUBLING = "points", "nats", "points per doubling of k"
AT_STEP = "validation loss at step"  # with the step behind it
HIDDEN = ["kind", "method", "short"]
"""Columns that say what a row is, for summaries: no file has them."""

Term = tuple[float, Setting]
"""One setting of a contrast behind its weight."""


def accuracy_row(study: Study, claim: str, terms: Sequence[Term], **said: Any) -> dict[str, Any]:
    """A row on test accuracies, of which every example is known; `said`: see `_row`.

    A run that collapsed at the chosen learning rate gets no example right. Each setting chooses its learning rate
    anew in every resample of the seeds, see `analysis.stats.contrasts`.
    """
    weights = [weight for weight, _ in terms]
    grids = [_Grid(study.cells(setting)) for _, setting in terms]
    trained = {seed for grid in grids if grid.trains for seed in grid.chosen}
    chosen = [grid.at_seeds(trained) for grid in grids]
    seeds = common_seeds(chosen)

    def resampled(pick: tuple[int, ...]) -> Any:
        parts = [grid.mean(pick) for grid in grids]
        if any(part is None for part in parts):
            return None
        return sum(weight * part for weight, part in zip(weights, parts, strict=True))

    estimate = Estimate()
    if seeds:
        values = contrast(list(zip(weights, chosen, strict=True)))
        choice = choice_interval(seeds, resampled) if len(seeds) > 1 else (NAN, NAN)
        estimate = of_examples(values, choice)
    return _row(study, claim, terms, estimate, **said)


class _Grid:
    """One setting's runs at every learning rate: validation accuracies, and by seed what each run gets right."""

    def __init__(self, cells: pd.DataFrame) -> None:
        self.validation = validation_table(cells)
        self.trains = bool((cells["steps"] > 0).any())
        sizes = cells.loc[cells["status"] == "finished", "test_n"]
        nothing = np.zeros(int(sizes.max()) if len(sizes) else 0)
        self.right: dict[float | None, dict[int, Any]] = {}
        for run in cells[cells["status"].isin(["finished", "collapsed"])].to_dict("records"):
            ended = right_answers(run) if run["status"] == "finished" else nothing
            self.right.setdefault(run["lr"], {})[int(run["seed"])] = ended
        rate = best_rate(self.validation)
        self.chosen = {} if rate is None else self.right[rate]

    def at_seeds(self, trained: set[int]) -> dict[int, Any]:
        """What the runs at the chosen rate get right; without training one run, at every seed of the others."""
        if self.trains or not self.chosen:
            return self.chosen
        return dict.fromkeys(trained, next(iter(self.chosen.values())))

    def mean(self, pick: tuple[int, ...]) -> Any:
        """Mean over resampled seeds per example, at the rate that they choose; None if a seed has no run there."""
        if not self.trains:
            return next(iter(self.chosen.values()))
        values = self.right.get(best_rate(self.validation.reindex(columns=list(pick))), {})
        if not set(pick) <= set(values):
            return None
        return sum(values[seed] for seed in pick) / len(pick)


def curve_row(
    study: Study,
    claim: str,
    terms: Sequence[Term],
    kind: str,
    axis: str,
    step: int | None = None,
    **said: Any,
) -> dict[str, Any]:
    """A row on what is read off validation curves, over the range of `axis` that all runs of the contrast have.

    Of losses the lower one is ahead. The choice of the learning rate is left out of these intervals. Where a run
    collapsed, or what is read is not finite, there is no estimate: the remark says who is ahead by rank, a collapse
    being last.

    Args:
        study: whose settings these are.
        claim: that the row belongs to.
        terms: the contrast.
        kind: AREA: over the range; AT_END or VAL_ACCURACY: at its end; AT_STEP: at `step`.
        axis: `step` or `forwards`.
        step: of AT_STEP, with an evaluation.
        **said: see `_row`.
    """
    chosen = [study.ended(setting) for _, setting in terms]
    seeds = common_seeds(chosen)
    curves = [
        {s: study.curve(run[s]["run_id"]) for s in seeds if run[s]["status"] == "finished"}
        for run in chosen
    ]
    every = [curve for of_seed in curves for curve in of_seed.values()]
    quantity = kind if step is None else f"{kind} {step}"
    said = {"kind": kind, "unit": POINTS if kind == VAL_ACCURACY else NATS} | said
    if any(curve.empty for curve in every):
        said["remark"] = "the evaluations of its runs were not kept"
        return _row(study, claim, terms, Estimate(), quantity=quantity, **said)
    start = max((float(curve[axis].min()) for curve in every), default=0.0)
    end = min((float(curve[axis].max()) for curve in every), default=0.0)
    numbers = []
    for (weight, _), of_seed in zip(terms, curves, strict=True):
        ranked = dict.fromkeys(seeds, -np.inf)
        for seed, curve in of_seed.items():
            value = _read(curve, kind, axis, start, end if step is None else step)
            ranked[seed] = value if np.isfinite(value) else -np.inf
        numbers.append((weight, ranked))
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
        where = f"over {start:,.0f} to" if kind == AREA else "at"
        quantity += f", {where} {end:,.0f} forward passes"
    return _row(study, claim, terms, estimate, quantity=quantity, **said)


def _read(curve: pd.DataFrame, kind: str, axis: str, start: float, end: float) -> float:
    """A number of a curve, which is straight between its points, the larger the better: nats, or %."""
    x, loss = np.asarray(curve[axis], float), np.asarray(curve["loss"], float)
    if kind == VAL_ACCURACY:
        return float(100 * np.interp(end, x, curve["accuracy"]))
    if kind != AREA:
        return -float(np.interp(end, x, loss))
    if end <= start:
        return NAN
    at = np.concatenate([[start], x[(x > start) & (x < end)], [end]])
    return -float(trapezoid(np.interp(at, x, loss), at) / (end - start))


def _row(
    study: Study,
    claim: str,
    terms: Sequence[Term],
    estimate: Estimate,
    what: str | None = None,
    quantity: str = ACCURACY,
    unit: str = POINTS,
    remark: str = "",
    claimed: bool = True,
    kind: str = ACCURACY,
) -> dict[str, Any]:
    """A row; `claimed` says whether it is a claim, with a verdict, and part of the claim's family of tests."""
    settings = [setting for _, setting in terms]
    equal = "equal in all seeds: no interval" * bool(estimate.n > 1 and np.isnan(estimate.low))
    reasons = [*map(study.why, settings), remark, "" if remark else equal]
    labels = [method_label(setting.method) for setting in settings]
    what = what or " against ".join(labels)
    return {
        "claim": claim,
        "what": what,
        "kind": kind,
        "method": settings[0].method,
        "short": what if labels[-1] == labels[0] else f"against {labels[-1]}",
        "precision": settings[0].precision,
        "quantity": quantity,
        "unit": unit,
        **asdict(estimate),
        "claimed": claimed,
        "remark": "; ".join(reason for reason in dict.fromkeys(reasons) if reason),
    }
