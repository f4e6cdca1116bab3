"""The protocol of the comparison: what is compared, on which runs, and which run is to be made next.

A method is tried at learning rates in half decades. Seed 0 looks for them: from three rates outwards, until at
least RATES were tried and the best is not at an edge. Every seed then runs the best rate and its two neighbours. A
seed's result is that of the rate whose validation loss is best on the *other* seeds, so that no seed chooses its own
rate and the spread over seeds contains the choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

Losses: TypeAlias = Mapping[int, Mapping[int, float]]
"""Exponent of the learning rate -> seed -> validation loss at the end of the budget."""

RATES = 5
"""Learning rates that are tried at least."""

MOST_RATES = 9
"""So many are tried at most, where the best stays at an edge."""

FIRST_EXPONENT = {
    name: exponent
    for exponent, names in {
        -12: "adamezo",
        -11: "zo_momentum",
        -10: "lozo lozo_m adam",
        -9: "mezo hizoo zo_sign zo_conservative conmezo subzero tezo",
        -8: "bszo bszo_b mezo_adam sparse_mezo fzoo",
        -6: "zo_muon",
    }.items()
    for name in names.split()
}
"""Where a method's search begins, in half decades: at this one and the next two."""

SEEDS = (0, 1, 2, 3, 4)

BUDGET = 360
"""Forward passes of training."""

COMMON = (
    *("model=reviews-tiny", "budget=forward_passes"),
    *(f"steps={BUDGET}", f"eval_every={BUDGET // 4}"),
    *("patience=null", "threads=1", "precision.noise=philox", "tracking.mode=disabled"),
    "checkpoint.full_every=null",
)


@dataclass(frozen=True)
class Entry:
    """One line of the table."""

    name: str
    overrides: tuple[str, ...]  # beside its part's
    role: str = "method"  # or `question` (another setting of a method) or `reference`

    @property
    def method(self) -> str:
        """The optimizer's name."""
        return self.overrides[0].removeprefix("optimizer=")


METHODS = (
    *("mezo", "bszo", "fzoo", "lozo", "hizoo", "mezo_adam", "zo_sign", "zo_momentum"),
    *("sparse_mezo", "zo_muon", "subzero", "tezo", "adamezo", "conmezo", "lozo_m", "bszo_b"),
    "zo_conservative",
)
QUESTIONS = {
    "bszo, fixed noise": "optimizer.adaptive_noise=false",
    "mezo, signs": "optimizer.directions=rademacher",
    "bszo, k=1": "optimizer.k=1",
    "bszo, k=4": "optimizer.k=4",
    "bszo, signs": "optimizer.directions=rademacher",
    "bszo, k=8": "optimizer.k=8",
}
ENTRIES = (
    *(Entry(name, (f"optimizer={name}",)) for name in METHODS),
    Entry("mezo, rms", ("optimizer=mezo", "optimizer.step_norm=rms")),
    Entry("adam", ("optimizer=adam",), "reference"),
    *(
        Entry(name, (f"optimizer={name.partition(',')[0]}", override), "question")
        for name, override in QUESTIONS.items()
    ),
)

PARTS = {
    "fp32": ("task=rotten_tomatoes", "precision=fp32", "precision.restore=streamed"),
    "bf16": ("task=rotten_tomatoes", "precision=bf16", "precision.restore=streamed"),
}
"""Parts of the study, most informative first."""


class Cell(NamedTuple):
    """One run."""

    part: str  # of PARTS
    entry: str  # its name
    exponent: int  # of the learning rate, in half decades
    seed: int  # of directions and mini-batches

    @property
    def lr(self) -> float:
        """The learning rate."""
        return rate_of(self.exponent)


def rate_of(exponent: int) -> float:
    """Returns 1 or 3 times a power of ten."""
    whole, half = divmod(exponent, 2)
    return float(f"{3 if half else 1}e{whole}")


def score(losses: Mapping[int, float], seeds: Sequence[int]) -> float:
    """Returns the mean validation loss over seeds; a collapsed run is infinite, a missing one NaN."""
    return sum(losses.get(seed, math.nan) for seed in seeds) / len(seeds)


def wanted(start: Sequence[int], losses: Losses) -> list[tuple[int, int]]:
    """Returns the (exponent, seed) of one entry still missing, the next first; none if it is complete."""
    first = SEEDS[0]
    if missing := [e for e in start if first not in losses.get(e, {})]:
        return [(e, first) for e in missing]
    tried = sorted(e for e in losses if first in losses[e])
    best = min(tried, key=lambda e: losses[e][first])
    if len(tried) < RATES or (best in (tried[0], tried[-1]) and len(tried) < MOST_RATES):
        return [(_beyond(tried, {e: losses[e][first] for e in tried}), first)]
    for _ in range(MOST_RATES):
        near = [e for e in (best - 1, best, best + 1) if e in tried]
        order = sorted(near, key=lambda e: abs(e - best))
        if missing_pairs := [(e, s) for s in SEEDS for e in order if s not in losses[e]]:
            return missing_pairs
        whole = [e for e in tried if all(s in losses[e] for s in SEEDS)]
        chosen = min(whole, key=lambda e: score(losses[e], SEEDS))
        if chosen == best:
            return []
        best = chosen
    return []


def _beyond(tried: Sequence[int], losses: Mapping[int, float]) -> int:
    """Returns the next exponent to try, on the side of the best or, if it is in the middle, of the better edge."""
    best = min(tried, key=lambda e: losses[e])
    low, high = tried[0], tried[-1]
    if best - low != high - best:
        return low - 1 if best - low < high - best else high + 1
    return low - 1 if losses[low] <= losses[high] else high + 1


def seeds_of(losses: Losses) -> list[int]:
    """Returns the seeds that can be reported: they have run the first seed's best rate and its neighbours."""
    first = {e: of[SEEDS[0]] for e, of in losses.items() if SEEDS[0] in of}
    if len(first) < RATES:
        return []
    best = min(first, key=lambda e: first[e])
    near = [e for e in (best - 1, best, best + 1) if e in first]
    return [s for s in SEEDS if all(s in losses[e] for e in near)]


def chosen_for(seed: int, losses: Losses, seeds: Sequence[int]) -> int:
    """Returns the exponent with the best mean validation loss on the other seeds; a single seed chooses for itself."""
    others = [s for s in seeds if s != seed] or [seed]
    whole = [e for e in losses if all(s in losses[e] for s in seeds)]
    return min(whole, key=lambda e: score(losses[e], others))
