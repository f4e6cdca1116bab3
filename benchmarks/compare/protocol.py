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
from typing import NamedTuple, TypeAlias

Losses: TypeAlias = Mapping[int, Mapping[int, float]]
"""Exponent of the learning rate -> seed -> validation loss at the end of the budget."""

COMMON = (
    *("budget=forward_passes", "patience=null", "threads=1", "tracking.mode=disabled"),
    *("precision.restore=streamed", "precision.noise=philox", "checkpoint.full_every=null"),
)


@dataclass(frozen=True)
class Entry:
    """One line of the table."""

    name: str
    overrides: tuple[str, ...]  # beside its part's; a learning rate is where its search begins
    role: str = "method"  # or `question` (another setting of a method), `reference` or `before`


PAPER = ("mezo", "bszo", "lozo", "hizoo", "mezo_adam", "bszo_b")
OTHERS = (
    *("fzoo", "zo_sign", "zo_momentum", "sparse_mezo", "zo_muon", "subzero", "tezo"),
    *("adamezo", "conmezo", "lozo_m", "zo_conservative"),
)
SETTINGS = {
    "fixed noise": "optimizer.adaptive_noise=false",
    "signs": "optimizer.directions=rademacher",
    "one-sided": "optimizer.two_sided=false",
    "two-sided": "optimizer.two_sided=true",
    **{f"k={k}": f"optimizer.k={k}" for k in (1, 4, 8)},
    **{f"m={m}": f"optimizer.m={m}" for m in (2, 6)},
    "eps=1e-3": "optimizer.eps=1e-3",
}
QUESTIONS = (
    *("bszo, fixed noise", "bszo, k=1", "bszo, k=4", "bszo, k=8", "bszo, m=2", "bszo, m=6"),
    *("bszo, signs", "mezo, signs"),
)
HALF_PRECISION = (
    *("bszo, eps=1e-3", "bszo, two-sided", "mezo, one-sided", "bszo, fixed noise"),
    *("mezo, eps=1e-3", "bszo, k=1", "bszo, k=4", "bszo, m=2"),
)
"""Questions in bf16: why BSZO is behind MeZO there comes first."""


def _question(name: str) -> Entry:
    """Returns another setting of a method, by the names of both."""
    method, setting = name.split(", ")
    return Entry(name, (f"optimizer={method}", SETTINGS[setting]), "question")


_ENTRIES = (
    *(Entry(name, (f"optimizer={name}",)) for name in (*PAPER, *OTHERS)),
    Entry("mezo, rms", ("optimizer=mezo", "optimizer.step_norm=rms")),
    Entry("adam", ("optimizer=adam",), "reference"),
    Entry(
        "mezo, released",
        (
            "optimizer=mezo",
            "precision.loss=model",
            "precision.restore=merged",
            "precision.noise=torch",
        ),
        "reference",
    ),
    *(_question(name) for name in dict.fromkeys((*QUESTIONS, *HALF_PRECISION))),
    Entry("mezo, lora", ("optimizer=mezo", "adapter=lora", "lr=1e-3"), "question"),
    Entry("bszo, lora", ("optimizer=bszo", "adapter=lora", "lr=1e-2"), "question"),
)
BEFORE = Entry("zero_shot", ("optimizer=zero_shot",), "before")
"""The model before the first step: one run, not a line."""
BY_NAME = {entry.name: entry for entry in (*_ENTRIES, BEFORE)}
ALL = tuple(entry.name for entry in _ENTRIES if entry.role != "question")


@dataclass(frozen=True)
class Part:
    """A table of the study: what its runs share.

    Attributes:
        overrides: Model, task and precision, beside COMMON.
        names: Of its entries, the first ones first.
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

    @property
    def entries(self) -> list[Entry]:
        """The lines of its table."""
        return [BY_NAME[name] for name in self.names]

    @property
    def needs_gpu(self) -> bool:
        """Whether its runs are made on a GPU."""
        return "device=cuda" in self.overrides

    @property
    def words(self) -> tuple[str, ...]:
        """What is typed for every run."""
        budget = (f"steps={self.budget}", f"eval_every={self.budget // 4}")
        return (*COMMON, *budget, *self.overrides)


_TINY = ("model=reviews-tiny", "task=rotten_tomatoes")
_IMDB = ("model=reviews-tiny", "task=imdb", "task.max_length=32")  # the ends of reviews
_SMOLLM2 = ("model=smollm2-135m", "precision=bf16", "task.validation_size=256")
_GPU = ("device=cuda", "precision.restore=snapshot", "precision.graphs=true")
_REAL = (*PAPER, "subzero", "tezo", "conmezo", "zo_momentum")
PARTS = {
    "fp32": Part((*_TINY, "precision=fp32"), (*ALL, *QUESTIONS)),
    "bf16": Part((*_TINY, "precision=bf16"), (*ALL, *HALF_PRECISION)),
    "imdb_fp32": Part((*_IMDB, "precision=fp32")),
    "smollm2": Part(
        (*_SMOLLM2, *_GPU, "task=rotten_tomatoes", "task.test_size=512"),
        (*_REAL, "adam", "bszo, eps=1e-3", "mezo, eps=1e-3", "mezo, lora", "bszo, lora"),
        seeds=(0, 1, 2),
        rates=3,
        most_rates=6,
    ),
    "smollm2_r8": Part(
        (*_SMOLLM2, *_GPU, "task=reuters_r8", "task.test_size=512"),
        (*_REAL, "adam", "bszo, eps=1e-3", "mezo, eps=1e-3"),
        seeds=(0, 1, 2),
        rates=3,
        most_rates=6,
    ),
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
        """The learning rate."""
        return rate_of(self.exponent)


def rate_of(exponent: int) -> float:
    """Returns 1 or 3 times a power of ten."""
    whole, half = divmod(exponent, 2)
    return float(f"{3 if half else 1}e{whole}")


def start_of(rate: float) -> range:
    """Returns the three exponents around a rate, where a search begins."""
    middle = round(2 * math.log10(rate))
    return range(middle - 1, middle + 2)


def score(losses: Mapping[int, float], seeds: Sequence[int]) -> float:
    """Returns the mean validation loss over seeds; a collapsed run is infinite, a missing one NaN."""
    return sum(losses.get(seed, math.nan) for seed in seeds) / len(seeds)


def wanted(part: Part, start: Sequence[int], losses: Losses) -> list[tuple[int, int]]:
    """Returns the (exponent, seed) of one entry still missing, the next first; none if it is complete."""
    first = part.seeds[0]
    if missing := [e for e in start if first not in losses.get(e, {})]:
        return [(e, first) for e in missing]
    tried = sorted(e for e in losses if first in losses[e])
    best = min(tried, key=lambda e: losses[e][first])
    if _goes_on(part, tried, best):
        return [(_beyond(tried, {e: losses[e][first] for e in tried}), first)]
    for _ in tried:
        near = [e for e in (best - 1, best, best + 1) if e in tried]
        order = sorted(near, key=lambda e: abs(e - best))
        if missing_pairs := [(e, s) for s in part.seeds for e in order if s not in losses[e]]:
            return missing_pairs
        whole = [e for e in tried if all(s in losses[e] for s in part.seeds)]
        chosen = min(whole, key=lambda e: score(losses[e], part.seeds))
        if chosen == best:
            return []
        best = chosen
    return []


def _goes_on(part: Part, tried: Sequence[int], best: int) -> bool:
    """Whether the search of rates needs another one: too few were tried, or the best is at an edge."""
    at_edge = best in (tried[0], tried[-1])
    return len(tried) < part.rates or (at_edge and len(tried) < part.most_rates)


def _beyond(tried: Sequence[int], losses: Mapping[int, float]) -> int:
    """Returns the next exponent to try, on the side of the best or, if it is in the middle, of the better edge."""
    best = min(tried, key=lambda e: losses[e])
    low, high = tried[0], tried[-1]
    if best - low != high - best:
        return low - 1 if best - low < high - best else high + 1
    return low - 1 if losses[low] <= losses[high] else high + 1


def seeds_of(part: Part, losses: Losses) -> list[int]:
    """Returns the seeds that can be reported: they have run the first seed's best rate and its neighbours."""
    first = {e: of[part.seeds[0]] for e, of in losses.items() if part.seeds[0] in of}
    best = min(first, key=lambda e: first[e], default=0)
    if not first or _goes_on(part, sorted(first), best):
        return []
    near = [e for e in (best - 1, best, best + 1) if e in first]
    return [s for s in part.seeds if all(s in losses[e] for e in near)]


def chosen_for(seed: int, losses: Losses, seeds: Sequence[int]) -> int:
    """Returns the exponent with the best mean validation loss on the other seeds; a single seed chooses for itself."""
    others = [s for s in seeds if s != seed] or [seed]
    whole = [e for e in losses if all(s in losses[e] for s in seeds)]
    return min(whole, key=lambda e: score(losses[e], others))
