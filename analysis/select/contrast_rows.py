"""Rows of contrasts between a study's settings: on test accuracies, and on values read off validation curves."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.paper.names import method_label
from analysis.select.study_runs import Run, Study, mean_height, right
from analysis.select.study_sweeps import MAIN
from analysis.stats.contrasts import NONE, Estimate, contrast, of_examples, of_values

ACCURACY, CHANGE = "test accuracy", "change of test accuracy from fp32"
AREA, AT_END, VAL_ACCURACY = "mean validation loss", "last validation loss", "validation accuracy"
AT_STEP = "validation loss at step {}"
POINTS, NATS, DOUBLING = "points", "nats", "points per doubling of k"
Value = Callable[[pd.DataFrame, float, float], float]
"""A curve with its horizontal positions as `x`, where the common range starts and where it ends -> a number."""


@dataclass(frozen=True)
class Term:
    """One setting of a contrast and its weight."""

    weight: float
    method: str
    precision: str
    ending: str = MAIN
    variant: Mapping[str, Any] = field(default_factory=dict)

    def runs(self, study: Study) -> dict[int, Run]:
        """Its finished runs at the chosen learning rate, by seed."""
        return study.runs(self.method, self.precision, self.ending, **self.variant)

    def why(self, study: Study) -> str:
        """Why it has fewer runs than seeds; empty if it has all."""
        return study.why(self.method, self.precision, self.ending, **self.variant)


def accuracy_row(
    study: Study,
    claim: str,
    terms: list[Term],
    what: str | None = None,
    quantity: str = ACCURACY,
    unit: str = POINTS,
    claimed: bool = True,
) -> dict[str, Any]:
    """A row on test accuracies, of which every example is known."""
    values = contrast([(term.weight, right(term.runs(study))) for term in terms])
    estimate = of_examples(values) if len(values) else Estimate()
    return _row(study, claim, terms, what, quantity, unit, estimate, claimed=claimed)


def loss_row(
    study: Study, claim: str, pair: list[Term], quantity: str, axis: str, value: Value
) -> dict[str, Any]:
    """A row on validation losses: the lower one is ahead, hence the sign."""
    return curve_row(study, claim, negative(pair), quantity, axis, value, NATS, pair)


def curve_row(
    study: Study,
    claim: str,
    terms: list[Term],
    quantity: str,
    axis: str,
    value: Value,
    unit: str,
    named: list[Term] | None = None,
) -> dict[str, Any]:
    """A row on what is read off validation curves, over the range of `axis` that all runs of the contrast have.

    Args:
        study: the study.
        claim: a key of CLAIMS.
        terms: the contrast.
        quantity: what `value` reads.
        axis: `step` or `forwards`.
        value: see Value.
        unit: of the value.
        named: the terms in the order of the row's name, if it is another.
    """
    runs = [term.runs(study) for term in terms]
    seeds = sorted(set.intersection(*(set(of_seed) for of_seed in runs)))
    curves = [{s: study.curve(of_seed[s]["run_id"]) for s in seeds} for of_seed in runs]
    all_curves = [curve for of_seed in curves for curve in of_seed.values()]
    start = max((float(curve[axis].min()) for curve in all_curves), default=0.0)
    end = min((float(curve[axis].max()) for curve in all_curves), default=0.0)
    numbers = [
        (term.weight, {s: value(c.assign(x=c[axis]), start, end) for s, c in of_seed.items()})
        for term, of_seed in zip(terms, curves, strict=True)
    ]
    values = contrast(numbers)
    finite = values[np.isfinite(values)]
    lost = f"no finite value in {len(values) - len(finite)} seeds" * (len(values) > len(finite))
    row = _row(study, claim, named or terms, None, quantity, unit, of_values(finite), lost)
    if axis == "forwards" and all_curves:
        range_ = f"{start:,.0f} to {end:,.0f}" if quantity == AREA else f"{end:,.0f}"
        row["quantity"] += f", {'over' if quantity == AREA else 'at'} {range_} forward passes"
    return row


def area(curve: pd.DataFrame, start: float, end: float) -> float:
    """The area under the validation loss over the range, divided by its length; nats."""
    return mean_height(curve["x"], curve["loss"], start, end) if end > start else float("nan")


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
    curves = [study.curve(run["run_id"]) for term in terms for run in term.runs(study).values()]
    steps = [set(curve["step"].astype(int)) for curve in curves]
    return sorted(set.intersection(*steps) - {0}) if steps else []


def _row(
    study: Study,
    claim: str,
    terms: list[Term],
    what: str | None,
    quantity: str,
    unit: str,
    estimate: Estimate,
    remark: str = "",
    claimed: bool = True,
) -> dict[str, Any]:
    labels = [method_label(term.method) for term in terms]
    reasons = dict.fromkeys([*(term.why(study) for term in terms), remark])
    return {
        "claim": claim,
        "what": what or " against ".join(labels),
        "precision": next(t.precision for t in terms),
        "quantity": quantity,
        "unit": unit,
        **asdict(estimate),
        "verdict": estimate.verdict if claimed else NONE,
        "remark": "; ".join(reason for reason in reasons if reason),
    }


def negative(terms: list[Term]) -> list[Term]:
    """The contrast with its sign turned."""
    return [Term(-t.weight, t.method, t.precision, t.ending, t.variant) for t in terms]
