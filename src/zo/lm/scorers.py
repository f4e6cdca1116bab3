"""The scorer that an objective and a kind of model need."""

from __future__ import annotations

from typing import TypeAlias

from zo.distributed.processes import Processes
from zo.lm.config import ModelError
from zo.lm.encoder_decoder import EncoderDecoderScorer
from zo.lm.load import Loaded
from zo.lm.objectives import MetricScorer, TextScorer, text_scorer
from zo.lm.scoring import CandidateScorer
from zo.tasks.config import TaskConfig
from zo.tasks.objective import OF_TEXT, ObjectiveConfig

Scorer: TypeAlias = CandidateScorer | TextScorer


def scorers(
    loaded: Loaded,
    task: TaskConfig,
    objective: ObjectiveConfig,
    loss: str,
    graphs: bool,
    processes: Processes | None = None,
) -> tuple[Scorer, Scorer]:
    """Returns what computes losses, and what computes evaluations.

    Raises:
        TaskError, ModelError: If they do not fit each other.
    """
    name, kind = objective.of(task), loaded.kind
    if name in OF_TEXT:
        function = objective.function if name == "reward" else None
        scorer = text_scorer(task, function, loaded.model, loaded.tokenizer, processes)
        return scorer, scorer
    given = (loaded.model, loaded.tokenizer.pad_token_id, loss)
    likelihood = "completion" if task.kind == "completion" else name
    scored: CandidateScorer
    if kind == "encoder-decoder":
        if name == "metric":
            raise ModelError("objective=metric: is for decoders and masked models")
        scored = EncoderDecoderScorer(*given, likelihood, processes)
    elif name == "metric":
        scored = MetricScorer(
            *given, kind, "classification", graphs, processes, metric=objective.metric
        )
    else:
        scored = CandidateScorer(*given, kind, likelihood, graphs, processes)
    if task.measure is not None and task.kind == "completion":
        return scored, text_scorer(task, None, loaded.model, loaded.tokenizer, processes)
    return scored, scored
