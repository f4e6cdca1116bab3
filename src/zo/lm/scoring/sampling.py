"""Sampling by counter-based noise: a token's random number depends on (seed, step, prompt, sample, position) alone.

So a completion depends neither on its batch nor on the process. All points of a step use the same numbers, so their
rewards differ only by their weights. A number u in (0, 1) chooses the first token, in the vocabulary's order, at which
the sum of the probabilities exceeds u. A small change of the weights changes few tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zo.noise.keys import EVALUATION, SAMPLING, NoiseKey
from zo.noise.philox import WORD_BITS, counter, philox


@dataclass(frozen=True)
class Sampling:
    """Settings of sampling."""

    temperature: float  # Logits are divided by it, > 0
    # Nucleus sampling: total probability of the smallest set of tokens to sample from, in (0, 1]
    top_p: float
    seed: int  # Of the run


@dataclass(frozen=True)
class Draws:
    """The random numbers of a batch of completions."""

    sampling: Sampling  # Settings
    # Optimizer step; None for evaluations, whose numbers are the same at every step
    step: int | None
    samples: Sequence[int]  # For each text, its number among the samples of its prompt

    def uniforms(self, prompts: Sequence[int], count: int) -> np.ndarray:
        """Returns numbers in (0, 1), (texts, count), float64; `prompts` numbers each text's prompt, as in its file."""
        stream = EVALUATION if self.step is None else SAMPLING
        blocks = -(-count // 4)
        words = np.empty((len(prompts), blocks, 4), np.uint64)
        words[:, :, 0] = np.arange(blocks)
        low = high = 0
        for i, (prompt, sample) in enumerate(zip(prompts, self.samples, strict=True)):
            key = NoiseKey(self.sampling.seed, stream, self.step or 0, prompt)
            low, high, *rest = counter(key, sample)
            words[i, :, 1:] = rest
        drawn = philox(words.reshape(-1, 4), (low, high)).reshape(len(prompts), -1)[:, :count]
        return (drawn + 0.5) / 2.0**WORD_BITS  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Draw:
    """Chooses tokens by sampling, see `zo.lm.scoring.decoding.Choose`."""

    sampling: Sampling
    uniforms: Tensor  # Random number of each row and position, (rows, positions)

    def __call__(self, rows: Tensor, position: int, scores: Tensor) -> Tensor:
        """Returns the sampled token of each row at a position, counted from 0; scores are (rows, vocabulary)."""
        u = self.uniforms[rows, position, None]
        p = torch.softmax(scores.float() / self.sampling.temperature, -1)
        if self.sampling.top_p < 1:
            p = _nucleus(p, self.sampling.top_p)
        sums = p.double().cumsum(-1)
        return (sums <= u * sums[:, -1:]).sum(-1).clamp(max=p.shape[-1] - 1)


def _nucleus(p: Tensor, top_p: float) -> Tensor:
    """Returns the probabilities in the smallest set of tokens with sum `top_p` or more; 0 for others."""
    ordered, order = p.sort(stable=True, dim=-1, descending=True)
    before = ordered.double().cumsum(-1) - ordered
    return torch.zeros_like(p).scatter_(-1, order, ordered * (before < top_p))
