"""Scorers of objectives. Those without a gradient are a negated measure of predictions or texts, or reward."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from zo.distributed.processes import Processes
from zo.lm.config import ModelError
from zo.lm.load import Loaded
from zo.lm.scoring.candidates import CandidateScorer
from zo.lm.scoring.collate import Batch
from zo.tasks.config import TaskConfig
from zo.tasks.objective import OF_PAIRS, OF_TEXT, ObjectiveConfig
from zo.tasks.predictions import Confusion

if TYPE_CHECKING:
    from zo.lm.scoring.texts import TextScorer

Scorer: TypeAlias = "CandidateScorer | TextScorer"


class MetricScorer(CandidateScorer):
    """Accuracy or F1 of a mini-batch's predictions, negated: from -1 to 0. Evaluations are those of candidates."""

    differentiable = False

    def __init__(self, *options: Any, metric: str = "accuracy") -> None:
        super().__init__(*options)
        self._metric = metric

    @torch.inference_mode()
    def loss(self, batch: Batch) -> float:
        """Returns the negated metric of the mini-batch."""
        return self.branches(batch, 1)[0]

    @torch.inference_mode()
    def branches(self, batch: Batch, n: int) -> list[float]:
        """Returns the negated metrics of n copies of the batch."""
        labels = batch.labels.tolist()
        chunks = self._comparable(batch.repeated(n) if n > 1 else batch).chunk(n)
        return [-self._value(chunk, labels) for chunk in chunks]

    def _value(self, scores: torch.Tensor, labels: list[int]) -> float:
        """Returns the metric; nan if a score is."""
        if bool(scores.isnan().any()):
            return math.nan
        predictions = scores.argmax(-1).tolist()
        if self._metric == "accuracy":
            return sum(p == y for p, y in zip(predictions, labels, strict=True)) / len(labels)
        return Confusion.of(labels, predictions, scores.shape[-1]).macro_f1


def scorers(
    loaded: Loaded,
    task: TaskConfig,
    objective: ObjectiveConfig,
    loss: str,
    graphs: bool,
    processes: Processes | None = None,
    seed: int = 0,
) -> tuple[Scorer, Scorer]:
    """Returns the scorers of losses and of evaluations. Raises TaskError or ModelError if something does not fit."""
    name, kind = objective.of(task), loaded.kind
    measured = task.measure is not None and task.kind == "completion"
    texts: TextScorer | None = None
    if name in OF_TEXT or measured:
        from zo.lm.scoring.texts import text_scorer

        rated = objective if name == "reward" else None
        if task.own_measure and rated is None:
            rated = replace(objective, name="measure", function=task.measure, functions={})
        texts = text_scorer(task, rated, loaded.model, loaded.tokenizer, processes, seed)
        if name in OF_TEXT:
            return texts, texts
    given = (loaded.model, loaded.tokenizer.pad_token_id, loss, kind)
    pairs = kind == "encoder-decoder"
    likelihood = "completion" if task.kind == "completion" else name
    scored: CandidateScorer
    if name == "metric":
        if pairs:
            raise ModelError("objective=metric: is for decoders and masked models")
        scored = MetricScorer(*given, "classification", graphs, processes, metric=objective.metric)
    elif name in OF_PAIRS:
        from zo.lm.scoring.preferences import PreferencePairScorer, PreferenceScorer

        scored = (PreferencePairScorer if pairs else PreferenceScorer)(
            *given, name, graphs and not pairs, processes, objective=objective
        )
    elif pairs:
        from zo.lm.scoring.encoder_decoder import EncoderDecoderScorer

        scored = EncoderDecoderScorer(*given, likelihood, False, processes)
    else:
        scored = CandidateScorer(*given, likelihood, graphs, processes)
    return scored, texts or scored
