"""Baselines that read training examples but make no step: in-context learning and linear probing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from zo.extras import unusable
from zo.lm.baselines import ICLConfig, LinearProbeConfig
from zo.lm.config import ModelError
from zo.lm.scoring.candidates import CandidateScorer, Evaluation
from zo.tasks.config import TaskError
from zo.tasks.prompts import Encoded, special_tokens


class Given(NamedTuple):
    """Inputs of a baseline: training examples, the run's seed, and the most tokens of a batch."""

    scorer: CandidateScorer
    train: Sequence[Encoded]
    seed: int
    tokenizer: Any
    max_tokens: int


class InContext:
    """In-context learning: training examples and their answers come before each text.

    A demonstration has the tokens of its prompt and true candidate. Leading special tokens come once, before the first
    demonstration. All texts get the same demonstrations, so that a batch computes them once per row.

    **Source**: Malladi et al. 2023, released code. **Deviations**: demonstrations are joined as tokens, not as text.
    """

    def __init__(self, config: ICLConfig, given: Given) -> None:
        tokenizer, train = given.tokenizer, list(given.train)
        self._scorer, self._first = given.scorer, special_tokens(tokenizer)[0]
        self._demonstrations: list[int] = []
        between = tokenizer(config.separator, add_special_tokens=False)["input_ids"]
        for example in random.Random(given.seed).sample(train, min(config.k, len(train))):
            prompt = example.prompt_ids[self._first :]
            self._demonstrations += [*prompt, *example.candidate_ids[example.label], *between]

    def shown(self, examples: Sequence[Encoded]) -> list[Encoded]:
        """Returns examples with the demonstrations before their prompts. Raises TaskError if one is too long."""
        n, given = self._first, self._demonstrations
        prompts = ([*e.prompt_ids[:n], *given, *e.prompt_ids[n:]] for e in examples)
        found = [replace(e, prompt_ids=ids) for e, ids in zip(examples, prompts, strict=True)]
        try:
            self._scorer.check(found)
        except TaskError as error:
            key, _, reason = str(error).partition(": ")
            if key != "task.max_length":
                raise
            raise TaskError(f"optimizer.k: with demonstrations {reason}; give fewer") from None
        return found

    def evaluate(self, examples: Sequence[Encoded], *given: Any) -> Evaluation:
        """Predicts a whole split; see `CandidateScorer.evaluate`."""
        return self._scorer.evaluate(self.shown(examples), *given)


class LinearProbe:
    """Linear probing: a logistic regression on the last layer's states predicts the label.

    States are standardised by the training examples' mean and deviation.

    Raises:
        ModelError: If scikit-learn is missing.
        TaskError: If all training examples have one class.
    """

    def __init__(self, config: LinearProbeConfig, given: Given) -> None:
        try:
            from sklearn.linear_model import LogisticRegression
            from sklearn.pipeline import make_pipeline
            from sklearn.preprocessing import StandardScaler
        except ImportError as error:
            raise ModelError(f"optimizer=linear_probe: {unusable('scikit-learn', error)}") from None
        labels = [example.label for example in given.train]
        if len(set(labels)) < 2:
            raise TaskError("task.train_size: all training examples are of one class; give more")
        self._scorer = given.scorer
        self._probe = make_pipeline(StandardScaler(), LogisticRegression(C=config.c, max_iter=5000))
        self._probe.fit(self._scorer.features(given.train, given.max_tokens).numpy(), labels)

    def evaluate(
        self,
        examples: Sequence[Encoded],
        max_tokens: int,
        progress: Callable[[int], None] | None = None,
    ) -> Evaluation:
        """Predicts a whole split; see `CandidateScorer.evaluate`. Never predicts a label without training examples."""
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
        loss, accuracy = -sum(true) / len(true), right / len(examples)
        return Evaluation(loss, accuracy, predictions, probabilities=sure)
