"""Which steps are timed: shapes x dtypes x examples x methods x ways over the weights, less what a run refuses.

Weights and tokens are random. The lengths of mini-batches are like the data's: SST-2's training phrases have a median
of 9 tokens and a few above 40, with two answers of one token; TREC's questions have 8 to 20 tokens, with six answers of
one or two tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zo.config import ConfigError, RunConfig, command_line
from zo.config.precision import NOISES
from zo.optim import OPTIMIZERS
from zo.optim.config import ZerothOrderConfig
from zo.tasks import Encoded
from zo.weights.constraints import RESTORE_POLICIES

FORWARD = "forward"
"""In place of a method: one forward pass at θ, what steps are compared with."""

PAPER_WAY = ("subtract", "torch")
"""Restore policy and noise of the released code and of the paper's sweeps."""

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
METHODS = tuple(n for n, m in OPTIMIZERS.items() if issubclass(m.config, ZerothOrderConfig))
ANSWERS = {"sst2": [1, 1], "trec": [2, 1, 1, 1, 1, 1]}
"""Kind of examples -> tokens of each answer."""

TOKENS = 4, 8192
"""Range of token ids: below are special tokens, above some vocabularies end."""

LR = 1e-7  # nothing depends on it

_OPT_125M = (
    *("num_hidden_layers=12", "hidden_size=768", "word_embed_proj_dim=768", "ffn_dim=3072"),
    "num_attention_heads=12",
)
SHAPES = {
    "reviews-tiny": ["model=reviews-tiny"],
    "opt-125m": ["model=opt-1.3b", *(f"model.architecture.{of}" for of in _OPT_125M)],
    "opt-1.3b": ["model=opt-1.3b"],
    "mistral-7b": ["model=mistral-7b"],
    "opt-13b": ["model=opt-13b"],
}
"""Model architectures: what chooses them on a run's command line."""

DTYPES = {"mistral-7b": "float16", "opt-13b": "bfloat16"}
"""The paper's, of other shapes float32."""


@dataclass(frozen=True)
class Case:
    """One step to be timed."""

    shape: str  # of SHAPES
    dtype: str  # of the weights
    examples: str  # of ANSWERS
    method: str  # a registered one, or FORWARD
    restore: str
    noise: str
    batch_size: int
    batches: int  # mini-batches of a measurement
    device: str  # cpu, cuda or cuda:N
    threads: int  # of the CPU

    @property
    def group(self) -> tuple[str, str, str, str]:
        """What interleaved cases have in common."""
        return self.shape, self.dtype, self.examples, self.method

    def config(self) -> RunConfig:
        """Returns the configuration of a run that makes these steps.

        Raises:
            ConfigError: If a run refuses it.
        """
        method = "mezo" if self.method == FORWARD else self.method
        overrides = [
            *(*SHAPES[self.shape], "model.weights=random", "task=sst2"),
            *(f"optimizer={method}", f"lr={LR}", f"precision={PRECISIONS[self.dtype]}"),
            *(f"precision.restore={self.restore}", f"precision.noise={self.noise}"),
            *(f"device={self.device}", f"threads={self.threads}", f"batch_size={self.batch_size}"),
        ]
        return command_line.runs(overrides)[0]

    def batch(self, seed: int) -> list[Encoded]:
        """Returns a mini-batch, the same one every time."""
        random, n = np.random.default_rng(seed), self.batch_size
        if self.examples == "sst2":  # "It was" stands behind a phrase
            lengths = np.clip(np.exp(random.normal(2.2, 0.8, n)), 1, 60).astype(int) + 3
        else:  # "Question:" and "Type:" stand around a question
            lengths = random.integers(8, 21, n) + 6
        texts = [random.integers(*TOKENS, size).tolist() for size in ANSWERS[self.examples]]
        prompts = [[2, *random.integers(*TOKENS, length).tolist()] for length in lengths]
        return [Encoded(prompt, texts, int(random.integers(len(texts)))) for prompt in prompts]

    def __str__(self) -> str:
        way = "" if self.method == FORWARD else f" {self.restore} {self.noise}"
        return f"{' '.join(self.group)}{way}"


def ways(restores: Sequence[str] | None, noises: Sequence[str] | None) -> list[tuple[str, str]]:
    """Returns pairs of restore policy and noise: those asked for; else the paper's, and all policies with Philox."""
    if restores is None and noises is None:
        newest = list(NOISES)[-1]
        return list(dict.fromkeys([PAPER_WAY, *((r, newest) for r in RESTORE_POLICIES)]))
    return [(r, n) for n in noises or NOISES for r in restores or RESTORE_POLICIES]


def cases(
    shapes: Iterable[str],
    dtypes: Sequence[str] | None,
    examples: Sequence[str] | None,
    methods: Sequence[str] | None,
    pairs: Sequence[tuple[str, str]],
    **common: Any,
) -> Iterator[Case]:
    """Yields what is asked for, each shape in its own dtype unless others are given, its forward pass first.

    Without examples and methods: all methods on SST-2-like examples and, on a CPU, BSZO on TREC-like ones.
    """
    kinds = examples or (["sst2", "trec"] if common["device"].startswith("cpu") else ["sst2"])
    for shape in shapes:
        for dtype in dtypes or [DTYPES.get(shape, "float32")]:
            for kind in kinds:
                yield Case(shape, dtype, kind, FORWARD, *PAPER_WAY, **common)
                for method in methods or (METHODS if kind == "sst2" or examples else ["bszo"]):
                    for pair in pairs:
                        yield Case(shape, dtype, kind, method, *pair, **common)


def split(wanted: Iterable[Case]) -> tuple[list[Case], dict[Case, str]]:
    """Returns the cases that a run accepts, and the reasons why it refuses the others."""
    accepted, refused = [], {}
    for case in dict.fromkeys(wanted):
        try:
            case.config()
            accepted.append(case)
        except ConfigError as error:
            refused[case] = "; ".join(str(p) for p in error.problems)
    return accepted, refused
