"""Where half precision hurts: the full 2 × 2 × 2 factorial of what is rounded, and float32 beside it.

A factor is exact or as the released code rounds it: the loss (`precision.loss=float32`), the restoring of θ after a
probe (`restore=streamed`: θ never moves), the update (`rounding=compensated`).

Everything is said twice. With their `own` rates each of the eight combinations, and fp32, has the learning rate that
the house rule chooses for it: what one gets who tunes. With a `common` rate all eight of a method in a precision, and
fp32, have the one that the rule chooses over all of their runs: what a rounding does when nothing else changes. The
intervals leave out the choice of the learning rate.

Effects are on a gain, so that positive means exactness helps: of accuracy as it is, of the loss with its sign turned.
A main effect is the mean gain from making a factor exact, over the four combinations of the others; an
interaction is half the difference of such gains with the other factor exact and rounded (of three factors likewise).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, product
from math import prod
from typing import Any

import numpy as np
import pandas as pd

from analysis.paper.names import method_order
from analysis.select.answers import check_examples, right_answers
from analysis.select.cell_runs import chosen_lr
from analysis.select.contrast_rows import NATS, POINTS
from analysis.select.study_claims import OURS, RIVAL
from analysis.select.study_runs import MAIN, REFERENCE, ROUNDINGS, Study, by_seed
from analysis.stats.contrasts import Estimate, contrast, of_examples, of_values, verdicts

EXACT = {"loss": "float32", "restore": "streamed", "rounding": "compensated"}
FACTORS = ("loss", "restore", "update")
NOTHING, EVERYTHING, FLOAT32 = "all rounded", "all exact", "fp32"
TEST, LOSS = "test accuracy", "final validation loss"
QUANTITIES = {TEST: POINTS, LOSS: NATS}
LEVEL, GAIN, MAIN_EFFECT, INTERACTION = (
    *("level", "gain over all rounded", "main effect", "interaction"),
)
GAP, EXPLAINED, LEAD = "loss from fp32", "share of it", "lead over MeZO"
ALL = "mean over methods"
OWN, COMMON = "own", "common"


def name(exact: Sequence[bool]) -> str:
    """Which factors are exact, in words: `loss and update exact`."""
    if all(exact) or not any(exact):
        return EVERYTHING if all(exact) else NOTHING
    return (
        " and ".join(f for f, is_exact in zip(FACTORS, exact, strict=True) if is_exact) + " exact"
    )


COMBINATIONS = {name(exact): exact for exact in product((False, True), repeat=3)}
ALONE = {factor: f"{factor} exact" for factor in FACTORS} | {"everything": EVERYTHING}
"""What is made exact by itself, or all of it -> the name of that combination."""
Weights = Mapping[str, float]
"""Name of a combination -> its weight in a contrast."""
GAINS: dict[str, Weights] = {words: {said: 1, NOTHING: -1} for words, said in ALONE.items()}
EFFECTS: dict[str, Weights] = {
    " × ".join(FACTORS[f] for f in factors): {
        said: prod(1 if exact[f] else -1 for f in factors) / 4
        for said, exact in COMBINATIONS.items()
    }
    for size in (1, 2, 3)
    for factors in combinations(range(3), size)
}


@dataclass(frozen=True)
class Cells:
    """One method in one precision: what its runs say; keys are names of combinations, and FLOAT32."""

    method: str
    lrs: dict[str, float | None]  # None if no run has finished
    # quantity -> name -> seed -> gain: a number, or one per test example
    values: dict[str, dict[str, dict[int, Any]]]
    statuses: dict[str, list[str]]  # of the runs at that learning rate


def roundings_frame(study: Study) -> pd.DataFrame:
    """All numbers; empty without a sweep over roundings.

    Returns:
        Columns `kind`, `precision`, `method` (or `mean over methods`), `what`, `quantity`, `unit`, `rates`, `lr`
        (of a level, or of what a lead or a share is about), the fields of `analysis.stats.contrasts.Estimate`,
        `p_holm` (over the rows of a kind, a quantity and `rates`), `verdict`, and `status`, for levels: `finished`, or
        why there is none.
    """
    check_examples(study.filled)
    part = study.part(ROUNDINGS)
    methods = sorted(part["optimizer"].unique(), key=method_order)
    rows = [
        {"kind": kind, "precision": precision, "rates": rates, "quantity": quantity, **row}
        for rates, precision in product((OWN, COMMON), part["precision"].unique())
        for cells in [[_cells(study, method, precision, rates) for method in methods]]
        for quantity in QUANTITIES
        for kind, row in _rows(cells, quantity)
    ]
    if not rows:
        return pd.DataFrame()
    first = ["kind", "precision", "method", "what", "quantity", "unit", "rates", "lr"]
    frame = pd.DataFrame(rows)
    frame = frame[[*first, *(key for key in frame if key not in (*first, "status")), "status"]]
    claimed = ~frame["kind"].isin([LEVEL, EXPLAINED])
    frame = verdicts(frame, claimed, ["kind", "quantity", "rates"])
    frame["status"] = frame.pop("status")
    return frame


def _cells(study: Study, method: str, precision: str, rates: str) -> Cells:
    part, main = study.part(ROUNDINGS), study.part(MAIN)
    mine = part[(part["optimizer"] == method) & (part["precision"] == precision)]
    full = main[(main["optimizer"] == method) & (main["precision"] == REFERENCE)]
    common = chosen_lr(mine) if len(mine) else None
    found = Cells(method, {}, {quantity: {} for quantity in QUANTITIES}, {})
    names = [
        name(exact) for exact in mine[list(EXACT)].eq(list(EXACT.values())).to_numpy().tolist()
    ]
    for words, cells in (*mine.groupby(names, sort=False), (FLOAT32, full)):
        said = str(words)
        lr = chosen_lr(cells) if rates == OWN and len(cells) else common
        at_rate = cells[cells["lr"] == lr]
        runs = by_seed(at_rate[at_rate["status"] == "finished"])
        losses = {seed: run["val_loss"] for seed, run in runs.items()}
        found.lrs[said] = lr
        found.statuses[said] = list((cells if lr is None else at_rate)["status"])
        found.values[TEST][said] = {seed: right_answers(run) for seed, run in runs.items()}
        finite = {seed: -loss for seed, loss in losses.items() if np.isfinite(loss)}
        found.values[LOSS][said] = finite
    return found


def _rows(all_cells: list[Cells], quantity: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kind and row of everything about one quantity of some methods in one precision."""
    for cells in all_cells:
        yield from _levels(cells, quantity)
        yield from _contrasts([cells], quantity, cells.method)
        yield from _explained(cells, quantity)
    yield from _contrasts(all_cells, quantity, ALL)
    by_method = {cells.method: cells for cells in all_cells}
    if {OURS, RIVAL} <= set(by_method):
        ours, rival = by_method[OURS], by_method[RIVAL]
        for said in (FLOAT32, *COMBINATIONS):
            pair = [(w, c.values[quantity].get(said, {})) for w, c in ((1.0, ours), (-1.0, rival))]
            yield LEAD, _row(ours, quantity, said, _estimate(pair))


def _levels(cells: Cells, quantity: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The means themselves: of the loss with its own sign."""
    sign, unit = (-1, NATS) if quantity == LOSS else (1, "%")
    for said in (FLOAT32, *COMBINATIONS):
        estimate = _estimate([(sign, cells.values[quantity].get(said, {}))])
        others = [status for status in cells.statuses.get(said, []) if status != "finished"]
        status = "finished" if estimate.n else (others or ["missing"])[0]
        yield LEVEL, _row(cells, quantity, said, estimate) | {"status": status, "unit": unit}


def _contrasts(
    some: list[Cells], quantity: str, method: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Gains, main effects and interactions, averaged over the given cells that have all that they need."""
    for what, weights in [*GAINS.items(), *EFFECTS.items()]:
        kind = GAIN if weights is GAINS.get(what) else INTERACTION if "×" in what else MAIN_EFFECT
        values = [cells.values[quantity] for cells in some]
        whole = [v for v in values if all(v.get(said) for said in weights)]
        terms = [(w / len(whole), v[said]) for v in whole for said, w in weights.items()]
        yield kind, _row(some[0], quantity, what, _estimate(terms)) | {"method": method}


def _explained(cells: Cells, quantity: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The loss from fp32 to all rounded, and the share of it that exactness brings back.

    A share stands only where the loss's interval lies above 0: elsewhere there is nothing to explain.
    """
    values = cells.values[quantity]
    full, rounded = values.get(FLOAT32, {}), values.get(NOTHING, {})
    gap = _estimate([(1, full), (-1, rounded)])
    yield GAP, _row(cells, quantity, "fp32 against all rounded", gap)
    for words, said in ALONE.items():
        gain = _estimate([(1, values.get(said, {})), (-1, rounded)])
        share = gain.estimate / gap.estimate if gap.low > 0 else float("nan")
        estimate = Estimate(estimate=100 * share, n=min(gain.n, gap.n))
        yield EXPLAINED, _row(cells, quantity, words, estimate) | {"unit": "%"}


def _estimate(terms: Sequence[tuple[float, Mapping[int, Any]]]) -> Estimate:
    values: Any = contrast(terms) if terms and all(values for _, values in terms) else np.array([])
    if not len(values):
        return Estimate()
    return of_examples(values) if values.ndim == 2 else of_values(values)


def _row(cells: Cells, quantity: str, what: str, estimate: Estimate) -> dict[str, Any]:
    known = {"method": cells.method, "what": what, "unit": QUANTITIES[quantity]}
    return known | {"lr": cells.lrs.get(what, float("nan"))} | asdict(estimate) | {"status": ""}
