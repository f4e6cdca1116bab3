"""Which steps are timed: shapes x dtypes x examples x methods x ways over the weights, less what a run refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.steps.shapes import SHAPES
from zo.config import ConfigError, RunConfig, command_line
from zo.config.precision import NOISES
from zo.optim import OPTIMIZERS
from zo.optim.config import ZerothOrderConfig
from zo.weights.constraints import RESTORE_POLICIES

FORWARD = "forward"
"""In place of a method: one forward pass at θ, what steps are compared with."""

PAPER_WAY = ("subtract", "torch")
"""Restore policy and noise of the released code and of the paper's sweeps."""

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
METHODS = tuple(n for n, m in OPTIMIZERS.items() if issubclass(m.config, ZerothOrderConfig))
LR = 1e-7  # nothing depends on it


@dataclass(frozen=True)
class Case:
    """One step to be timed."""

    shape: str  # of SHAPES
    dtype: str  # of the weights
    examples: str  # of EXAMPLES
    method: str  # a registered one, or FORWARD
    restore: str
    noise: str
    batch_size: int
    batches: int  # mini-batches of a measurement
    device: str  # cpu, cuda or cuda:N
    threads: int  # of the CPU

    @property
    def group(self) -> tuple[str, str, str, str]:
        """What the cases that are timed in turns have in common."""
        return self.shape, self.dtype, self.examples, self.method

    @property
    def can_be_released(self) -> bool:
        """Whether the released code's way is rendered for it: decoders, float32."""
        masked = SHAPES[self.shape].masked
        return not masked and self.dtype == "float32" and self.method != FORWARD

    def config(self) -> RunConfig:
        """Returns the configuration of a run that makes these steps.

        Raises:
            ConfigError: If a run refuses it.
        """
        method = "mezo" if self.method == FORWARD else self.method
        overrides = [
            *(*SHAPES[self.shape].overrides, "model.weights=random", "task=sst2"),
            *(f"optimizer={method}", f"lr={LR}", f"precision={PRECISIONS[self.dtype]}"),
            *(f"precision.restore={self.restore}", f"precision.noise={self.noise}"),
            *(f"device={self.device}", f"threads={self.threads}", f"batch_size={self.batch_size}"),
        ]
        return command_line.runs(overrides)[0]

    def __str__(self) -> str:
        where = f"{self.shape} {self.dtype} {self.examples}"
        way = "" if self.method == FORWARD else f" {self.restore} {self.noise}"
        return f"{where} {self.method}{way}"


def ways(restores: Sequence[str] | None, noises: Sequence[str] | None) -> list[tuple[str, str]]:
    """Returns pairs of restore policy and noise: those asked for; else the paper's, and all policies with Philox."""
    if restores is None and noises is None:
        newest = list(NOISES)[-1]
        return list(dict.fromkeys([PAPER_WAY, *((r, newest) for r in RESTORE_POLICIES)]))
    pairs = [(r, n) for n in noises or NOISES for r in restores or RESTORE_POLICIES]
    return list(dict.fromkeys(pairs))


def cases(
    shapes: Iterable[str],
    dtypes: Sequence[str] | None,
    examples: Sequence[str] | None,
    methods: Sequence[str] | None,
    pairs: Sequence[tuple[str, str]],
    **common: Any,
) -> Iterator[Case]:
    """Yields what is asked for, each shape in its own dtype unless others are given, its forward pass first.

    Without examples and methods: all methods on SST-2-like examples and, for decoders on a CPU, BSZO on TREC-like ones.
    """
    for shape in shapes:
        own = SHAPES[shape]
        few = own.masked or not common["device"].startswith("cpu")
        kinds = examples or (("sst2",) if few else ("sst2", "trec"))
        for dtype in dtypes or (own.dtype,):
            for kind in kinds:
                yield Case(shape, dtype, kind, FORWARD, *PAPER_WAY, **common)
                chosen = methods or (METHODS if kind == "sst2" or examples else ("bszo",))
                for method in chosen:
                    for pair in pairs:
                        yield Case(shape, dtype, kind, method, *pair, **common)


def split(wanted: Iterable[Case]) -> tuple[list[Case], dict[Case, str]]:
    """Returns the cases that a run accepts, and the reasons why it refuses the others."""
    accepted, refused = [], {}
    for case in wanted:
        try:
            case.config()
            accepted.append(case)
        except ConfigError as error:
            refused[case] = "; ".join(str(p) for p in error.problems)
    return accepted, refused
