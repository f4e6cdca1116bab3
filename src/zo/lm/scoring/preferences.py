"""Losses of pairs of answers: DPO and SimPO.

Both are −log σ(margin) of a pair, mean over the pairs. With the log-probabilities of a pair's answers:

- DPO: margin = β · ((chosen − rejected) − (chosen − rejected of the reference)), sums over an answer's tokens.
- SimPO: margin = β · (chosen − rejected) − γ, means over an answer's tokens; no reference.

The reference is the model before the first step. Its numbers are computed once and come with the examples, so no second
model is kept.

Source: Rafailov et al. 2023, Direct Preference Optimization, equation 7; Meng et al. 2024, SimPO, equation 6.
Deviations: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zo.lm.scoring.candidates import CandidateScorer, Evaluation
from zo.lm.scoring.encoder_decoder import EncoderDecoderScorer
from zo.tasks.objective import ObjectiveConfig
from zo.tasks.prompts import Encoded


class PreferenceScorer(CandidateScorer):
    """Loss of pairs, share of pairs whose chosen answer has the larger reward, and mean margin of the rewards."""

    def __init__(self, *options: Any, objective: ObjectiveConfig) -> None:
        super().__init__(*options)
        self._beta, self._gamma = objective.beta, objective.gamma
        self._simpo = self._objective == "simpo"

    def share(self, examples: Sequence[Encoded]) -> int:
        """Returns the number of pairs."""
        return len(examples)

    @torch.inference_mode()
    def log_probabilities(self, examples: Sequence[Encoded], max_tokens: int) -> list[list[float]]:
        """Returns the log-probabilities of each pair's answers; processes divide the pairs."""

        def sums(batch: Any) -> Tensor:
            return self._values(batch).sum(-1, dtype=torch.float64)

        found: list[list[float]] = self._of_each(examples, max_tokens, sums).tolist()
        return found

    def _rewards(self, values: Tensor, batch: Any) -> Tensor:
        """Returns the difference of the rewards of each pair, float64.  # (B,)."""
        answers = values.sum(-1, dtype=torch.float64)  # (B, 2)
        if self._simpo:
            answers = answers / (~batch.absent).sum(-1)
        differences = answers[:, 0] - answers[:, 1]
        if batch.reference is not None and not self._simpo:
            differences = differences - batch.reference
        return self._beta * differences

    def _each(self, rewards: Tensor) -> Tensor:
        """Returns the loss of each pair.  # (B,)."""
        return -F.logsigmoid(rewards - self._gamma if self._simpo else rewards)

    def _likelihood(self, values: Tensor, batch: Any) -> Tensor:
        return self._each(self._rewards(values, batch)).mean()

    def _scored(self, batch: Any) -> Tensor:
        """Returns loss, weight, prediction, its probability and the rewards' difference of each pair.  # (n, 5)."""
        rewards = self._rewards(self._values(batch), batch)
        rejected = (rewards <= 0).double()
        columns = [self._each(rewards), torch.ones_like(rewards), rejected, rewards.abs().sigmoid()]
        return torch.stack([*columns, rewards], dim=1)

    def _evaluation(self, found: Tensor, examples: Sequence[Encoded]) -> Evaluation:
        more = {"margin": found[:, 4].mean().item()}
        return replace(super()._evaluation(found[:, :4], examples), more=more)


class PreferencePairScorer(PreferenceScorer, EncoderDecoderScorer):
    """The same of encoder-decoder models."""
