"""The protocol of the comparison: what is compared, on which runs, and which run is to be made next.

A method is tried at learning rates in half decades. The first seed looks for them: from three rates around the middle
of the model's grid outwards, until enough were tried and the best is not at an edge. Every seed then runs the best
rate and its two neighbours. A seed's result is that of the rate whose validation loss is best on the *other* seeds,
so that no seed chooses its own rate and the spread over seeds contains the choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

Losses: TypeAlias = Mapping[int, Mapping[int, float]]
"""Exponent of the learning rate -> seed -> validation loss at the end of the budget."""

COMMON = (
    *("budget=forward_passes", "patience=null", "threads=1", "tracking.mode=disabled"),
    *("precision.restore=streamed", "precision.noise=philox", "checkpoint.full_every=null"),
)


PAPER = ("mezo", "bszo", "lozo", "hizoo", "mezo_adam", "bszo_b")
METHODS = (
    *PAPER,
    *("fzoo", "zo_sign", "zo_momentum", "sparse_mezo", "zo_muon", "subzero", "tezo"),
    *("adamezo", "conmezo", "lozo_m", "zo_conservative", "mezo, rms"),
)
REFERENCES = ("adam", "mezo, released")
ALL = (*METHODS, *REFERENCES)
QUESTIONS = (
    *("bszo, fixed noise", "bszo, k=1", "bszo, k=4", "bszo, k=8", "bszo, m=2", "bszo, m=6"),
    *("bszo, signs", "mezo, signs"),
)
HALF_PRECISION = (
    *("bszo, eps=1e-3", "bszo, two-sided", "mezo, one-sided", "bszo, fixed noise"),
    *("mezo, eps=1e-3", "bszo, k=1", "bszo, k=4", "bszo, m=2"),
)
"""Questions in bf16: why BSZO is behind MeZO there comes first."""

BEFORE = "zero_shot"
"""The model before the first step: one run, not a line."""

SETTINGS = {
    "": (),
    "rms": ("optimizer.step_norm=rms",),
    "released": ("precision.loss=model", "precision.restore=merged", "precision.noise=torch"),
    "fixed noise": ("optimizer.adaptive_noise=false",),
    "signs": ("optimizer.directions=rademacher",),
    "one-sided": ("optimizer.two_sided=false",),
    "two-sided": ("optimizer.two_sided=true",),
    **{text: (f"optimizer.{text}",) for text in ("k=1", "k=4", "k=8", "m=2", "m=6", "eps=1e-3")},
    "lora": ("adapter=lora",),
}
FIRST_RATES = {"mezo, lora": ("lr=1e-3",), "bszo, lora": ("lr=1e-2",)}
"""Where a search begins, if not in the middle of the model's grid."""


def overrides_of(name: str) -> tuple[str, ...]:
    """Returns what an entry's name stands for, beside its part's overrides: `method` or `method, setting`."""
    method, _, setting = name.partition(", ")
    return (f"optimizer={method}", *SETTINGS[setting], *FIRST_RATES.get(name, ()))


def role_of(name: str) -> str:
    """Returns `method`, `reference` or `question` (another setting of a method)."""
    if name in METHODS:
        return "method"
    return "reference" if name in REFERENCES else "question"


@dataclass(frozen=True)
class Part:
    """A table of the study: what its runs share.

    Attributes:
        overrides: Model, task and precision, beside COMMON.
        names: Of the lines of its table, the first ones first.
        budget: Forward passes of training.
        seeds: Of directions and mini-batches; the first one searches the rates.
        rates: Learning rates that are tried at least.
        most_rates: So many are tried at most, where the best stays at an edge.
    """

    overrides: tuple[str, ...]
    names: tuple[str, ...] = ALL
    budget: int = 360
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    rates: int = 5
    most_rates: int = 9


_TINY = ("model=reviews-tiny", "task=rotten_tomatoes")
_IMDB = ("model=reviews-tiny", "task=imdb", "task.max_length=32")  # the ends of reviews
_SMOLLM2 = (
    *("model=smollm2-135m", "precision=bf16", "task.validation_size=256", "task.test_size=512"),
    *("device=cuda", "precision.restore=snapshot", "precision.graphs=true"),
)
_REAL = (
    *PAPER,
    "subzero",
    "tezo",
    "conmezo",
    "zo_momentum",
    "adam",
    "bszo, eps=1e-3",
    "mezo, eps=1e-3",
)
_SHORT: dict[str, Any] = {"seeds": (0, 1, 2), "rates": 3, "most_rates": 6}
PARTS = {
    "fp32": Part((*_TINY, "precision=fp32"), (*ALL, *QUESTIONS)),
    "bf16": Part((*_TINY, "precision=bf16"), (*ALL, *HALF_PRECISION)),
    "imdb_fp32": Part((*_IMDB, "precision=fp32")),
    "smollm2": Part(
        (*_SMOLLM2, "task=rotten_tomatoes"), (*_REAL, "mezo, lora", "bszo, lora"), **_SHORT
    ),
    "smollm2_r8": Part((*_SMOLLM2, "task=reuters_r8"), _REAL, **_SHORT),
    "imdb_bf16": Part((*_IMDB, "precision=bf16")),
}
"""Parts of the study, the most informative first."""


class Cell(NamedTuple):
    """One run."""

    part: str  # its name
    entry: str  # its name
    exponent: int  # of the learning rate, in half decades
    seed: int  # of directions and mini-batches

    @property
    def lr(self) -> float:
        """The learning rate: 1 or 3 times a power of ten."""
        whole, half = divmod(self.exponent, 2)
        return float(f"{3 if half else 1}e{whole}")


def start_of(rate: float) -> range:
    """Returns the three exponents around a rate, where a search begins."""
    middle = round(2 * math.log10(rate))
    return range(middle - 1, middle + 2)


def wanted(part: Part, start: Sequence[int], losses: Losses) -> list[tuple[int, int]]:
    """Returns the (exponent, seed) of one entry still missing, the next first; none if it is complete."""
    first = first_of(part, losses)
    if missing := [e for e in start if e not in first]:
        return [(e, part.seeds[0]) for e in missing]
    if (further := next_rate(part, first)) is not None:
        return [(further, part.seeds[0])]
    best = min(first, key=first.__getitem__)
    for _ in first:
        near = [e for e in (best, best - 1, best + 1) if e in first]
        if pairs := [(e, s) for s in part.seeds for e in near if s not in losses[e]]:
            return pairs
        whole = [e for e in sorted(first) if set(part.seeds) <= set(losses[e])]
        chosen = min(whole, key=lambda e: fmean(losses[e][s] for s in part.seeds))
        if chosen == best:
            return []
        best = chosen
    return []


def first_of(part: Part, losses: Losses) -> dict[int, float]:
    """Returns exponent -> loss of the first seed, which searches the rates."""
    return {e: losses[e][part.seeds[0]] for e in sorted(losses) if part.seeds[0] in losses[e]}


def next_rate(part: Part, losses: Mapping[int, float]) -> int | None:
    """Returns the exponent that the search tries next, None if enough were tried and the best is not at an edge.

    It lies on the side of the best or, if that is in the middle, of the better edge.
    """
    low, high, best = min(losses), max(losses), min(losses, key=losses.__getitem__)
    limit = part.most_rates if best in (low, high) else part.rates
    if len(losses) >= limit:
        return None
    down, up = best - low, high - best
    return low - 1 if down < up or (down == up and losses[low] <= losses[high]) else high + 1


def seeds_of(part: Part, losses: Losses) -> list[int]:
    """Returns the seeds that can be reported: they have run the first seed's best rate and its neighbours."""
    first = first_of(part, losses)
    if not first or next_rate(part, first) is not None:
        return []
    best = min(first, key=first.__getitem__)
    near = [e for e in (best - 1, best, best + 1) if e in first]
    return [s for s in part.seeds if all(s in losses[e] for e in near)]


def chosen_for(seed: int, losses: Losses, seeds: Sequence[int]) -> int:
    """Returns the exponent with the best mean validation loss on the other seeds; a single seed chooses for itself."""
    others = [s for s in seeds if s != seed] or [seed]
    whole = [e for e in losses if all(s in losses[e] for s in seeds)]
    return min(whole, key=lambda e: fmean(losses[e][s] for s in others))
