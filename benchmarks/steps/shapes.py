"""What is timed: named model shapes with random weights, and mini-batches whose lengths are like the data's.

Tokens are random. Lengths: SST-2's training phrases have a median of 9 tokens and a few above 40, with two answers of
one token; TREC's questions have 8 to 20 tokens, with six answers of one or two tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zo.tasks import Encoded

FIRST_WORD = 4  # ids below are special tokens of the usual vocabularies


@dataclass(frozen=True)
class Shape:
    """A model architecture."""

    overrides: tuple[str, ...]  # what chooses it on a run's command line; the weights are random
    dtype: str  # the paper's, float32 where the paper has no such model
    vocabulary: int  # token ids below it are used
    masked: bool = False  # whether it fills masks


def _small_opt(name: str, layers: int, width: int, vocabulary: int) -> Shape:
    changes = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "word_embed_proj_dim": width,
        "ffn_dim": 4 * width,
        "num_attention_heads": max(width // 64, 1),
        "vocab_size": vocabulary,
    }
    architecture = (f"model.architecture.{key}={value}" for key, value in changes.items())
    return Shape(("model=opt-1.3b", f"model.name={name}", *architecture), "float32", vocabulary)


SHAPES = {
    "opt-tiny": _small_opt("opt-tiny", 2, 64, 8192),
    "opt-125m": _small_opt("opt-125m", 12, 768, 50_272),
    "roberta-large": Shape(("model=roberta-large",), "float32", 50_265, masked=True),
    "opt-1.3b": Shape(("model=opt-1.3b",), "float32", 50_272),
    "mistral-7b": Shape(("model=mistral-7b",), "float16", 32_000),
    "opt-13b": Shape(("model=opt-13b",), "bfloat16", 50_272),
}
"""opt-125m has 12 layers of width 768; opt-tiny is for tests; the others are the paper's."""


def sst2_like(n: int, seed: int, vocabulary: int = 50_000) -> list[Encoded]:
    """Phrases with "It was" behind them, two answers."""
    random = np.random.default_rng(seed)
    lengths = np.clip(np.exp(random.normal(2.2, 0.8, n)), 1, 60).astype(int) + 3
    return _examples(lengths, [1, 1], random, vocabulary)


def trec_like(n: int, seed: int, vocabulary: int = 50_000) -> list[Encoded]:
    """Questions with "Question:" and "Type:" around them, six answers, one of them of two tokens."""
    random = np.random.default_rng(seed)
    return _examples(random.integers(8, 21, n) + 6, [2, 1, 1, 1, 1, 1], random, vocabulary)


EXAMPLES: dict[str, Callable[[int, int, int], list[Encoded]]] = {
    "sst2": sst2_like,
    "trec": trec_like,
}


def batches(shape: Shape, examples: str, size: int, count: int) -> list[list[Encoded]]:
    """Returns `count` mini-batches of `size` examples, the same ones every time."""
    make = EXAMPLES[examples]
    found = [make(size, seed, shape.vocabulary) for seed in range(count)]
    return [[_masked(e) for e in batch] for batch in found] if shape.masked else found


def _masked(example: Encoded) -> Encoded:
    """The example with its mask in place of the last token, and of every answer the first token."""
    words = [ids[:1] for ids in example.candidate_ids]
    return replace(example, candidate_ids=words, mask_at=len(example.prompt_ids) - 1)


def _examples(
    lengths: Sequence[int], answers: list[int], random: np.random.Generator, vocabulary: int
) -> list[Encoded]:
    def tokens(n: int) -> list[int]:
        return random.integers(FIRST_WORD, min(vocabulary, 50_000), n).tolist()

    texts = [tokens(n) for n in answers]
    return [Encoded([2, *tokens(n)], texts, int(random.integers(len(answers)))) for n in lengths]
