"""The scorer that an objective needs; without a gradient: a measure of predictions or texts, or a reward, negated."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from zo.distributed.processes import Processes
from zo.lm.config import ModelError
from zo.lm.load import Loaded
from zo.lm.scoring.candidates import CandidateScorer, Evaluation, length_batches
from zo.lm.scoring.collate import Batch
from zo.lm.scoring.encoder_decoder import EncoderDecoderScorer
from zo.lm.scoring.generation import Generator
from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.measures import NAMED, best_of
from zo.tasks.objective import OF_TEXT, ObjectiveConfig
from zo.tasks.prompts import Encoded

CHECKED = 4
"""Examples that a reward function is tried with before the first step."""


class RewardError(TaskError):
    """A reward function that raises; its cause is the function's own exception."""


Rate = Callable[[Sequence[Encoded], Sequence[str]], list[float]]
"""Function from examples and the texts written for them to a number for each."""


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
        """Returns the metric; nan where a score is."""
        if bool(scores.isnan().any()):
            return math.nan
        predictions = scores.argmax(-1).tolist()
        if self._metric == "accuracy":
            return sum(p == y for p, y in zip(predictions, labels, strict=True)) / len(labels)
        values = []
        for label in {*labels, *predictions}:
            both = sum(p == y == label for p, y in zip(predictions, labels, strict=True))
            values.append(2 * both / (predictions.count(label) + labels.count(label)))
        return sum(values) / len(values)


class TextScorer:
    """A number for each generated text; the loss is their mean, negated."""

    differentiable = False

    def __init__(
        self, generator: Generator, rate: Rate, measure: str, processes: Processes | None = None
    ) -> None:
        self._generator, self._rate, self._measure = generator, rate, NAMED[measure]
        self._processes = processes or Processes()

    def collate(self, examples: Sequence[Encoded]) -> Sequence[Encoded]:
        """Returns the examples: prompts are padded where they are continued."""
        return examples

    def check(self, examples: Sequence[Encoded]) -> None:
        """Tries the first examples.

        Raises:
            TaskError: If the model does not see a prompt and what follows, or the function fails or draws; names the
                row.
        """
        self._generator.check(examples)
        tried = examples[:CHECKED]
        texts = self._generator(tried)
        for example, *values in zip(
            tried, *(self._rate(tried, texts) for _ in range(2)), strict=True
        ):
            if values[0] != values[1]:
                raise TaskError(
                    f"objective.function: two calls for the same text returned {values[0]:g} and {values[1]:g} (row "
                    f"{example.row}); a step compares losses, so that a reward must depend on prompt and text alone"
                )

    def share(self, examples: Sequence[Encoded]) -> int:
        """Returns what the loss of some examples counts for beside others': their number."""
        return len(examples)

    def loss(self, batch: Sequence[Encoded]) -> float:
        """Returns the mean of the examples' numbers, negated."""
        return -math.fsum(self._values(batch)) / len(batch)

    def evaluate(
        self,
        examples: Sequence[Encoded],
        max_tokens: int,
        progress: Callable[[int], None] | None = None,
    ) -> Evaluation:
        """Rates a whole split, prompts of similar length together; as `CandidateScorer.evaluate`."""
        more = self._generator.max_new_tokens
        groups = length_batches([len(e.prompt_ids) + more for e in examples], max_tokens)

        def rated(n: int) -> torch.Tensor:
            return torch.tensor(self._values([examples[i] for i in groups[n]]), dtype=torch.float64)

        values = self._processes.divide(groups, rated, progress).tolist()
        mean = math.fsum(values) / len(values)
        return Evaluation(-mean, mean, [], self._measure)

    def _values(self, examples: Sequence[Encoded]) -> list[float]:
        return self._rate(examples, self._generator(examples))


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
    given = (loaded.model, loaded.tokenizer.pad_token_id, loss, kind)
    pairs = kind == "encoder-decoder"
    scored: CandidateScorer
    if name == "metric":
        if pairs:
            raise ModelError("objective=metric: is for decoders and masked models")
        scored = MetricScorer(*given, "classification", graphs, processes, metric=objective.metric)
    else:
        likelihood = "completion" if task.kind == "completion" else name
        scorer_of = EncoderDecoderScorer if pairs else CandidateScorer
        scored = scorer_of(*given, likelihood, graphs and not pairs, processes)
    if task.measure is not None and task.kind == "completion":
        return scored, text_scorer(task, None, loaded.model, loaded.tokenizer, processes)
    return scored, scored


def text_scorer(
    task: TaskConfig,
    function: str | None,
    model: Any,
    tokenizer: Any,
    processes: Processes | None = None,
) -> TextScorer:
    """Returns the scorer of generated texts: by a reward function, or by the task's measure.

    Raises:
        TaskError: If there is no such function.
    """
    generator = Generator(model, tokenizer, task.max_new_tokens, task.stop)
    if function is not None:
        rewards = functools.partial(_rewards, function, load_function(function))
        return TextScorer(generator, rewards, "reward", processes)
    name = task.measure or "f1"

    def rate(examples: Sequence[Encoded], texts: Sequence[str]) -> list[float]:
        return [best_of(name, t, e.references) for e, t in zip(examples, texts, strict=True)]

    return TextScorer(generator, rate, name, processes)


def load_function(address: str) -> Callable[[list[str], list[str]], Any]:
    """Returns the function of ``module:function`` or ``file.py:function``.

    Raises:
        TaskError: If it cannot be had.
    """
    place, _, name = address.partition(":")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(
                Path(place).stem, Path(place).expanduser()
            )
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except Exception as error:  # whatever the module's own code raises
        raise TaskError(f"objective.function: {place}: {_first_line(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise TaskError(f"objective.function: {place} has no function {name}")
    return function  # type: ignore[no-any-return]


def _rewards(
    address: str, function: Callable[..., Any], examples: Sequence[Encoded], texts: Sequence[str]
) -> list[float]:
    """Returns the function's numbers."""
    try:
        found = list(function([e.prompt for e in examples], list(texts)))
    except Exception as error:
        row = next(
            (e.row for e, t in zip(examples, texts, strict=True) if _fails(function, e, t)), None
        )
        where = (
            f"row {row}" if row is not None else f"rows {', '.join(str(e.row) for e in examples)}"
        )
        what = f"{_place(error)}{_first_line(error)} ({where})"
        raise RewardError(f"objective.function: {address}: {what}") from error
    if len(found) != len(texts):
        raise TaskError(
            f"objective.function: {address} returns {len(found)} numbers for {len(texts)} texts; one for each is needed"
        )
    for example, value in zip(examples, found, strict=True):
        try:
            finite = math.isfinite(float(value))
        except (TypeError, ValueError):
            finite = False
        if not finite:
            raise TaskError(
                f"objective.function: {address} returns {value!r} for row {example.row}; a finite number is needed"
            )
    return [float(value) for value in found]


def _fails(function: Callable[..., Any], example: Encoded, text: str) -> bool:
    """Returns whether a function raises for one text alone."""
    try:
        function([example.prompt], [text])
    except Exception:
        return True
    return False


def _place(error: Exception) -> str:
    """Returns file and line of the last call in the function's own file."""
    own = traceback.extract_tb(error.__traceback__)[1:]
    lines = [frame.lineno for frame in own if frame.filename == own[0].filename]
    return f"{own[0].filename}:{lines[-1]}: " if lines else ""


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
