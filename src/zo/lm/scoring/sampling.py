"""Sampled texts by counter-based noise: a token's draw depends on (seed, step, prompt, sample, position) alone.

So a text depends neither on the batch that it is written in nor on the process, and all points of a step see the same
draws: their rewards differ by their weights, not by luck. A draw u in (0, 1) chooses the first token at which the sum
of the probabilities, in the vocabulary's order, is above u. A small change of the weights changes few tokens.
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
    """How tokens are drawn.

    Attributes:
        temperature: Logits are divided by it, > 0.
        top_p: The fewest most probable tokens with this sum of probabilities are drawn from, in (0, 1].
        seed: Of the run.
    """

    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True)
class Draws:
    """Which texts are sampled.

    Attributes:
        sampling: How.
        step: Optimizer step; None for evaluations, whose draws are the same at every step.
        samples: Number of the sample of its prompt, for each text.
    """

    sampling: Sampling
    step: int | None
    samples: Sequence[int]

    def uniforms(self, prompts: Sequence[int], count: int) -> np.ndarray:
        """Returns a number in (0, 1) for each text and position, (texts, count), float64.

        Args:
            prompts: Number of each text's prompt in its file.
            count: Positions.
        """
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


class Draw:
    """Chooses the tokens that are drawn; called as a logits processor of transformers, it leaves each row that one.

    Args:
        sampling: How.
        uniforms: Of each row and position, (rows, positions).

    Attributes:
        begin: Tokens of a row before the first one that is written.
    """

    def __init__(self, sampling: Sampling, uniforms: Tensor, begin: int = 0):
        self._sampling, self._uniforms, self.begin = sampling, uniforms, begin

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Returns scores of which one per row is finite."""
        rows = torch.arange(len(scores), device=scores.device)
        drawn = self.tokens(rows, input_ids.shape[1] - self.begin, scores)
        return torch.full_like(scores, -torch.inf).scatter_(-1, drawn[:, None], 0.0)

    def tokens(self, rows: Tensor, position: int, scores: Tensor) -> Tensor:
        """Returns the token of each row that is drawn.

        Args:
            rows: Their numbers.
            position: Of the token, from 0.
            scores: (rows, vocabulary).
        """
        u = self._uniforms[rows, position, None]
        p = torch.softmax(scores.float() / self._sampling.temperature, -1)
        if self._sampling.top_p < 1:
            p = _nucleus(p, self._sampling.top_p)
        sums = p.double().cumsum(-1)
        return (sums <= u * sums[:, -1:]).sum(-1).clamp(max=p.shape[-1] - 1)


def _nucleus(p: Tensor, top_p: float) -> Tensor:
    """Returns the probabilities of the fewest tokens whose sum is at least `top_p`; 0 for the others."""
    ordered, order = p.sort(stable=True, dim=-1, descending=True)
    before = ordered.double().cumsum(-1) - ordered
    return torch.zeros_like(p).scatter_(-1, order, ordered * (before < top_p))
