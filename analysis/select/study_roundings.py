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

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import combinations, product
from math import prod
from typing import Any

import numpy as np
import pandas as pd

from analysis.paper.names import method_order
from analysis.select.answers import check_examples, right_answers
from analysis.select.cell_runs import chosen_lr
from analysis.select.contrast_rows import NATS, POINTS
from analysis.select.study_claims import OURS, REFERENCE, RIVAL
from analysis.select.study_runs import Study, by_seed
from analysis.select.study_sweeps import MAIN, ROUNDINGS
from analysis.stats.contrasts import Estimate, contrast, of_examples, of_values, verdicts

EXACT = {
    "precision.loss": "float32",
    "precision.restore": "streamed",
    "precision.rounding": "compensated",
}
FACTORS = ("loss", "restore", "update")
Combination = tuple[bool, bool, bool]
COMBINATIONS: list[Combination] = [
    (loss, restore, update)
    for loss, restore, update in product((False, True), (False, True), (False, True))
]
NOTHING, EVERYTHING = (False, False, False), (True, True, True)
FLOAT32 = "fp32"
TEST, LOSS = "test accuracy", "final validation loss"
QUANTITIES = {TEST: POINTS, LOSS: NATS}
LEVEL, GAIN, MAIN_EFFECT, INTERACTION, GAP, EXPLAINED, LEAD = (
    *("level", "gain over all rounded", "main effect", "interaction"),
    *("loss from fp32", "share of it", "lead over MeZO"),
)
ALL = "mean over methods"
OWN, COMMON = "own", "common"
Values = dict[str, dict[int, Any]]  # name of a combination -> seed -> what one run says


@dataclass(frozen=True)
class Cells:
    """One method in one precision: its learning rate, and what its runs there say."""

    method: str
    precision: str
    rates: str  # OWN or COMMON, see the module
    # name of a combination, or FLOAT32 -> its learning rate; None if no run has finished
    lrs: Mapping[str, float | None]
    # quantity -> name of a combination, or FLOAT32 -> seed -> gain: a number, or one per test example
    values: Mapping[str, Values]
    # name of a combination -> statuses of its runs at that learning rate
    statuses: Mapping[str, list[str]]


@dataclass(frozen=True)
class Roundings:
    """The factorial of a study."""

    study: Study
    _cells: dict[tuple[str, str, str], Cells] = field(default_factory=dict, repr=False)

    @cached_property
    def precisions(self) -> list[str]:
        """Those of the sweep."""
        return list(dict.fromkeys(self.study.part(ROUNDINGS)["precision"]))

    @cached_property
    def methods(self) -> list[str]:
        """Those of the sweep, in the order of the tables."""
        return sorted(self.study.part(ROUNDINGS)["optimizer"].unique(), key=method_order)

    def cells(self, method: str, precision: str, rates: str) -> Cells:
        """What there is of a method in a precision."""
        key = (method, precision, rates)
        if key not in self._cells:
            self._cells[key] = _cells(self.study, method, precision, rates)
        return self._cells[key]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """All numbers.

        Returns:
            Columns `kind`, `precision`, `method` (or `mean over methods`), `what`, `quantity`, `unit`, `rates`, `lr`
            (of a level, or of what a lead or a share is about), the fields of `analysis.stats.contrasts.Estimate`,
            `p_holm` (over the rows of a kind, a quantity and `rates`), `verdict`, and `status`, for levels:
            `finished`, or why there is none.

        Raises:
            LogError: runs were tested on different examples, or one contradicts itself.
        """
        check_examples(self.study.filled)
        frame = pd.DataFrame(list(_rows(self)))
        if frame.empty:
            return frame
        claimed = ~frame["kind"].isin([LEVEL, EXPLAINED])
        frame = verdicts(frame, claimed, ["kind", "quantity", "rates"])
        frame["status"] = frame.pop("status")
        return frame


def name(exact: Combination) -> str:
    """A combination in words: `loss and update exact`."""
    if not any(exact):
        return "all rounded"
    if all(exact):
        return "all exact"
    chosen = [factor for factor, is_exact in zip(FACTORS, exact, strict=True) if is_exact]
    return " and ".join(chosen) + " exact"


def combination(variant: str) -> Combination:
    """Which factors a cell's variant makes exact."""
    varied = json.loads(variant)
    loss, restore, update = (varied.get(key) == exact for key, exact in EXACT.items())
    return loss, restore, update


def _cells(study: Study, method: str, precision: str, rates: str) -> Cells:
    part = study.part(ROUNDINGS)
    mine = part[(part["optimizer"] == method) & (part["precision"] == precision)]
    common = chosen_lr(mine) if len(mine) else None
    lrs: dict[str, float | None] = {}
    main = study.part(MAIN)
    full = main[(main["optimizer"] == method) & (main["precision"] == REFERENCE)]
    values: dict[str, Values] = {quantity: {} for quantity in QUANTITIES}
    statuses: dict[str, list[str]] = {}
    names = [name(combination(variant)) for variant in mine["variant"]]
    for said, cells in (*mine.groupby(names, sort=False), (FLOAT32, full)):
        lr = lrs[str(said)] = chosen_lr(cells) if rates == OWN and len(cells) else common
        at_rate = cells[cells["lr"] == lr]
        statuses[str(said)] = list((cells if lr is None else at_rate)["status"])
        runs = by_seed(at_rate[at_rate["status"] == "finished"])
        values[TEST][str(said)] = {seed: right_answers(run) for seed, run in runs.items()}
        losses = {seed: run["val_loss"] for seed, run in runs.items()}
        values[LOSS][str(said)] = {s: -loss for s, loss in losses.items() if np.isfinite(loss)}
    return Cells(method, precision, rates, lrs, values, statuses)


def _rows(roundings: Roundings) -> Iterator[dict[str, Any]]:
    for rates, precision in product((OWN, COMMON), roundings.precisions):
        all_cells = [roundings.cells(method, precision, rates) for method in roundings.methods]
        for quantity in QUANTITIES:
            for cells in all_cells:
                yield from _levels(cells, quantity)
                yield from _gains([cells], quantity, cells.method)
                yield from _effects([cells], quantity, cells.method)
                yield from _explained(cells, quantity)
            yield from _gains(all_cells, quantity, ALL)
            yield from _effects(all_cells, quantity, ALL)
            yield from _leads(roundings, precision, quantity, rates)


def _levels(cells: Cells, quantity: str) -> Iterator[dict[str, Any]]:
    """The means themselves: of the loss with its own sign."""
    sign = -1 if quantity == LOSS else 1
    for said in (FLOAT32, *map(name, COMBINATIONS)):
        values = cells.values[quantity].get(said, {})
        estimate = _estimate([(sign, values)])
        statuses = cells.statuses.get(said, [])
        others = [status for status in statuses if status != "finished"]
        status = "finished" if estimate.n else (others or ["missing"])[0]
        yield _row(LEVEL, cells, quantity, said, estimate) | {"status": status}


def weights(factors: tuple[int, ...]) -> dict[str, float]:
    """Weights of the eight combinations in a main effect (one place of FACTORS) or an interaction (several)."""
    return {name(c): prod(1 if c[f] else -1 for f in factors) / 4 for c in COMBINATIONS}


def _effects(some: list[Cells], quantity: str, method: str) -> Iterator[dict[str, Any]]:
    """Main effects and interactions, averaged over the given cells that have all eight combinations."""
    names = list(map(name, COMBINATIONS))
    whole = [cells for cells in some if all(cells.values[quantity].get(said) for said in names)]
    for size in (1, 2, 3):
        for factors in combinations(range(3), size):
            terms = [
                (weight / len(whole), cells.values[quantity][said])
                for cells in whole
                for said, weight in weights(factors).items()
            ]
            what = " × ".join(FACTORS[f] for f in factors)
            kind = MAIN_EFFECT if size == 1 else INTERACTION
            yield _row(kind, some[0], quantity, what, _estimate(terms)) | {"method": method}


def alone() -> dict[str, str]:
    """What is made exact by itself, or all of it -> the name of that combination."""
    single = {FACTORS[c.index(True)]: name(c) for c in COMBINATIONS if sum(c) == 1}
    return {factor: single[factor] for factor in FACTORS} | {"everything": name(EVERYTHING)}


def _gains(some: list[Cells], quantity: str, method: str) -> Iterator[dict[str, Any]]:
    """What one thing exact, or everything, gains over all rounded, averaged over the given cells that have both."""
    rounded = name(NOTHING)
    for words, said in alone().items():
        values = [cells.values[quantity] for cells in some]
        both = [v for v in values if v.get(said) and v.get(rounded)]
        terms = [
            (sign / len(both), v[which]) for v in both for sign, which in ((1, said), (-1, rounded))
        ]
        yield _row(GAIN, some[0], quantity, words, _estimate(terms)) | {"method": method}


def _explained(cells: Cells, quantity: str) -> Iterator[dict[str, Any]]:
    """The loss from fp32 to all rounded, and the share of it that exactness brings back.

    A share stands only where the loss's interval lies above 0: elsewhere there is nothing to explain.
    """
    values = cells.values[quantity]
    full, rounded = values.get(FLOAT32, {}), values.get(name(NOTHING), {})
    gap = _estimate([(1, full), (-1, rounded)])
    yield _row(GAP, cells, quantity, "fp32 against all rounded", gap)
    for words, said in alone().items():
        gain = _estimate([(1, values.get(said, {})), (-1, rounded)])
        share = gain.estimate / gap.estimate if gap.low > 0 else float("nan")
        estimate = Estimate(estimate=100 * share, n=min(gain.n, gap.n))
        yield _row(EXPLAINED, cells, quantity, words, estimate) | {"unit": "%"}


def _leads(
    roundings: Roundings, precision: str, quantity: str, rates: str
) -> Iterator[dict[str, Any]]:
    """BSZO against MeZO under each combination and in fp32."""
    if not {OURS, RIVAL} <= set(roundings.methods):
        return
    ours, rival = (roundings.cells(method, precision, rates) for method in (OURS, RIVAL))
    for said in (FLOAT32, *map(name, COMBINATIONS)):
        pair = [
            (1.0, ours.values[quantity].get(said, {})),
            (-1.0, rival.values[quantity].get(said, {})),
        ]
        yield _row(LEAD, ours, quantity, said, _estimate(pair))


def _estimate(terms: list[tuple[float, dict[int, Any]]]) -> Estimate:
    if not terms or not all(values for _, values in terms):
        return Estimate()
    values = contrast(terms)
    if not len(values):
        return Estimate()
    return of_examples(values) if values.ndim == 2 else of_values(values)


def _row(kind: str, cells: Cells, quantity: str, what: str, estimate: Estimate) -> dict[str, Any]:
    return {
        "kind": kind,
        "precision": cells.precision,
        "method": cells.method,
        "what": what,
        "quantity": quantity,
        "unit": QUANTITIES[quantity] if kind != LEVEL or quantity == LOSS else "%",
        "rates": cells.rates,
        "lr": cells.lrs.get(what, float("nan")),
        **asdict(estimate),
        "status": "",
    }
