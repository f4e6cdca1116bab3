"""Baselines that read training examples and make no step: in-context learning and linear probing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from zo.lm.config import ModelError
from zo.lm.scoring.candidates import CandidateScorer, Evaluation
from zo.tasks.config import TaskError
from zo.tasks.prompts import Encoded


def with_demonstrations(
    examples: Sequence[Encoded],
    train: Sequence[Encoded],
    k: int,
    seed: int,
    separator: str,
    tokenizer: Any,
    scorer: CandidateScorer,
) -> list[Encoded]:
    """In-context learning: texts with training examples and their answers in front.

    The tokens of a demonstration are those of its prompt and true candidate, without the special tokens in front, which
    stand once, before the first demonstration. All texts get the same demonstrations, so that a batch computes them
    once per row.

    **Source**: Malladi et al. 2023, released code. **Deviations**: demonstrations are joined as tokens, not as text.

    Raises:
        TaskError: If the scorer's model does not see the longest text whole; names `optimizer.k`.
    """
    n = len(tokenizer("")["input_ids"])
    shown: list[int] = []
    between = tokenizer(separator, add_special_tokens=False)["input_ids"]
    for example in random.Random(seed).sample(list(train), min(k, len(train))):
        shown += [*example.prompt_ids[n:], *example.candidate_ids[example.label], *between]
    found = [
        replace(e, prompt_ids=[*e.prompt_ids[:n], *shown, *e.prompt_ids[n:]]) for e in examples
    ]
    try:
        scorer.check(found)
    except TaskError as error:
        key, _, reason = str(error).partition(": ")
        if key != "task.max_length":
            raise
        raise TaskError(f"optimizer.k: with demonstrations {reason}; give fewer") from None
    return found


class LinearProbe:
    """Linear probing: a logistic regression on the last layer's states predicts the label.

    States are standardised by the training examples' mean and deviation.

    Raises:
        ModelError: If scikit-learn is missing.
        TaskError: If the training examples are all of one class.
    """

    def __init__(
        self, scorer: CandidateScorer, train: Sequence[Encoded], c: float, max_tokens: int
    ) -> None:
        try:
            from sklearn.linear_model import LogisticRegression
            from sklearn.pipeline import make_pipeline
            from sklearn.preprocessing import StandardScaler
        except ImportError:
            raise ModelError("optimizer=linear_probe: needs `pip install scikit-learn`") from None
        labels = [example.label for example in train]
        if len(set(labels)) < 2:
            raise TaskError("task.train_size: all training examples are of one class; give more")
        self._scorer = scorer
        self._probe = make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=5000))
        self._probe.fit(scorer.features(train, max_tokens).numpy(), labels)

    def evaluate(
        self,
        examples: Sequence[Encoded],
        max_tokens: int,
        progress: Callable[[int], None] | None = None,
    ) -> Evaluation:
        """Predicts a whole split; see `CandidateScorer.evaluate`. A label that training lacks is never predicted."""
        features = self._scorer.features(examples, max_tokens).numpy()
        known = {label: i for i, label in enumerate(self._probe.classes_)}
        columns = self._probe.predict_log_proba(features)
        floor = float(np.log(np.finfo(np.float64).tiny))
        true = [
            max(float(row[known[e.label]]), floor) if e.label in known else floor
            for row, e in zip(columns, examples, strict=True)
        ]
        predictions = [int(self._probe.classes_[i]) for i in columns.argmax(1)]
        if progress is not None:
            progress(len(examples))
        right = sum(p == e.label for p, e in zip(predictions, examples, strict=True))
        sure = np.exp(columns.max(1)).tolist()
        return Evaluation(
            -sum(true) / len(true), right / len(examples), predictions, probabilities=sure
        )
