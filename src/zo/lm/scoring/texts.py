"""Loss and evaluations of generated texts: the mean of their rewards or of a measure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from zo.distributed.processes import Processes
from zo.lm.scoring.candidates import Evaluation, length_batches
from zo.lm.scoring.generation import Generator, Written
from zo.lm.scoring.sampling import Draws, Sampling
from zo.rewards.calls import Request
from zo.rewards.rating import Rater
from zo.rewards.tally import SHOWN as TEXT
from zo.rewards.tally import Ratings, Tally, mean
from zo.tasks.checks import shortened
from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.measures import NAMED, best_of
from zo.tasks.objective import ObjectiveConfig
from zo.tasks.prompts import Encoded

CHECKED = 4  # Examples that test a reward function before the first step
FREQUENT = 16
ANYTHING = ("", "0", "1", "nan", "yes", "no", "True", "False", "None", "[]", "A")
"""Texts that are no answer, but get a reward from some scorers."""

TRIED = 100  # Examples on which constant answers are tried
NAMED_TOKENS = 3  # Special tokens that a note lists
SHOWN = 8  # Logged texts of an evaluation
ADDED = ("step", "split")  # Columns that the log adds to a text's


class MeasureRater:
    """Rates texts by a measure, against the best reference of each; attributes are those of `Rater`."""

    key = "task.measure"

    def __init__(self, measure: str) -> None:
        self.names: list[str] = []
        self.own: list[str] = []
        self.notes: list[str] = []
        self._measure = measure

    def start(self, columns: Sequence[str]) -> None:
        """Does nothing."""

    def rate(self, request: Request, rows: Sequence[int], together: bool = False) -> Ratings:
        """Returns the measure of each text."""
        pairs = zip(request.texts, request.references, strict=True)
        return Ratings([best_of(self._measure, text, of) for text, of in pairs])


@dataclass(frozen=True)
class Decoding:
    """Settings of decoding; greedy by default."""

    sampling: Sampling | None = None  # Of a step's completions; None: greedy
    samples: int = 1  # Completions per prompt and step
    eval_samples: int = 1  # Sampled completions per prompt in evaluations; 1: none


class TextScorer:
    """Rates each generated text; the loss is the negated mean."""

    differentiable = False
    writes = True

    def __init__(
        self,
        generator: Generator,
        rater: Rater | MeasureRater,
        measure: str,
        processes: Processes | None = None,
        decoding: Decoding | None = None,
    ) -> None:
        self._generator, self._rater, self._measure = generator, rater, NAMED[measure]
        self._processes = processes or Processes()
        self._decoding = decoding or Decoding()
        self._step = 0
        self._squares: list[float] = []
        self._state: dict[str, Any] = {"global_step": 0}
        self.tally = Tally()  # of the texts since `begin`
        # The first texts of this process's last evaluation, as rows of a log
        self.samples: list[dict[str, Any]] = []
        # The best constant answer and its reward; None before `measure_constants`
        self.constant: tuple[str, float] | None = None

    @property
    def notes(self) -> list[str]:
        """Sentences for the log about the rating of texts."""
        said = [*self._generator.notes, *self._rater.notes]
        if (dropped := self._generator.dropped) and not isinstance(self._rater, MeasureRater):
            some = ", ".join(dropped[:NAMED_TOKENS]) + ", ..." * (len(dropped) > NAMED_TOKENS)
            without = f"rewards see texts without special tokens ({some})"
            said.append(f"{without}; completion_ids has them")
        return said

    def collate(self, examples: Sequence[Encoded]) -> Sequence[Encoded]:
        """Returns the examples; the generator pads prompts."""
        return examples

    def check(self, examples: Sequence[Encoded]) -> None:
        """Starts the rater, and tests it with the first examples.

        Raises:
            TaskError: If prompt and completion exceed the model's window, or a function cannot be called, fails, draws
                or depends on other texts; names the row.
        """
        self._generator.check(examples)
        self._rater.start(list(examples[0].columns))
        tried = examples[:CHECKED]
        written = self._generator.write(tried)
        first, again = (self._rated(tried, written, together=True) for _ in range(2))
        alone = [self._rated([e], [w]).totals[0] for e, w in zip(tried, written, strict=True)]
        for name in self._rater.own:
            failed = [failure for failure in first.failures if failure.function == name]
            if len(failed) == len(tried):
                raise TaskError(
                    f"{self._rater.key}: {name} rates none of the first {len(tried)} texts: {failed[0].said}"
                    f" (row {tried[0].row})"
                )
        for how, others in (
            ("two calls for the same text returned", again.totals),
            ("a text among others and alone got", alone),
        ):
            for example, one, other in zip(tried, first.totals, others, strict=True):
                if one != other:
                    raise TaskError(
                        f"{self._rater.key}: {how} {one} and {other} (row {example.row}); a step compares losses,"
                        " so a reward must depend on prompt and text alone"
                    )

    def begin(self, step: int, steps: int) -> None:
        """Begins a step: sets `trainer_state`, and forgets what the last one measured."""
        self._step, self._state = step, {"global_step": step, "max_steps": steps}
        self.tally, self._squares = Tally(), []

    def share(self, examples: Sequence[Encoded]) -> int:
        """Returns the weight of a loss of some examples: their number."""
        return len(examples)

    def loss(self, batch: Sequence[Encoded]) -> float:
        """Returns the negated mean of the texts' rewards."""
        return self.branches(batch, 1)[0]

    def branches(self, batch: Sequence[Encoded], n: int) -> list[float]:
        """Returns the losses of n copies of the batch, whose texts are generated together, copy after copy."""
        copies = self._rewards(batch, n)
        self._squares += (self._mean(x * x for x in of if x is not None) for of in copies)
        return [0.0 - self._mean(of) for of in copies]

    def _mean(self, rewards: Iterable[float | None]) -> float:
        """Returns the mean of the rewards that are not None. Raises TaskError if all are."""
        if (found := mean(rewards)) is None:
            raise TaskError(
                f"{self._rater.key}: returned None for every text of a mini-batch or split, which have no mean then;"
                " return a number for at least one, or give more examples"
            )
        return found

    def squares(self) -> list[float]:
        """Returns the mean square of the rewards of each copy of a batch since the last call."""
        squares, self._squares = self._squares, []
        return squares

    def _rewards(self, batch: Sequence[Encoded], n: int) -> list[list[float | None]]:
        """Returns the texts' rewards for n copies of the batch; None for texts that no function rates."""
        how = self._decoding
        samples = [i for _ in batch for i in range(how.samples)] * n
        examples = [example for example in batch for _ in range(how.samples)] * n
        draws = None if how.sampling is None else Draws(how.sampling, self._step, samples)
        written = self._generator.write(examples, draws, n)
        found = self._counted(examples, written)
        size = len(examples) // n
        return [found.totals[i * size : (i + 1) * size] for i in range(n)]

    def branch_bytes(self, batch: Sequence[Encoded]) -> int:
        """Returns about the most bytes that generating the texts of a copy of the batch takes."""
        width = max(len(e.prompt_ids) for e in batch)
        return self._generator.row_bytes(width) * len(batch) * self._decoding.samples

    def evaluate(
        self,
        examples: Sequence[Encoded],
        max_tokens: int,
        progress: Callable[[int], None] | None = None,
    ) -> Evaluation:
        """Rates a whole split, with prompts of similar length together; see `CandidateScorer.evaluate`."""
        room = self._generator.max_new_tokens
        groups = length_batches([len(e.prompt_ids) + room for e in examples], max_tokens)
        self.samples = []

        def rated(n: int) -> torch.Tensor:
            return self._evaluated([examples[i] for i in groups[n]])

        table = self._processes.divide(groups, rated, progress).T.tolist()
        means = [mean(None if math.isnan(v) else v for v in column) for column in table]
        value = self._mean(means[:1])
        of_functions = (f"rewards/{name}" for name in self._rater.names)
        names = [f"pass@{self._decoding.eval_samples}", "errors", *of_functions]
        more = {name: m for name, m in zip(names, means[1:], strict=True) if m is not None}
        if not more["errors"]:
            del more["errors"]
        if self.constant is not None:
            more["constant"] = self.constant[1]
        return Evaluation(0.0 - value, value, [], self._measure, more=more)

    def _evaluated(self, examples: Sequence[Encoded]) -> torch.Tensor:
        """Returns a row per example: its reward, then that of each function; nan if there is none."""
        written = self._generator.write(examples)
        found = self._counted(examples, written)
        if not self.samples:
            self.samples = _samples(examples, written, found)
        best = self._best_of_drawn(examples)
        failed = {failure.index for failure in found.failures}
        errors = [1.0 if i in failed else 0.0 for i in range(len(examples))]
        columns = [found.totals, best, errors, *map(found.values.__getitem__, self._rater.names)]
        rows = [[math.nan if v is None else v for v in row] for row in zip(*columns, strict=True)]
        return torch.tensor(rows, dtype=torch.float64)

    def _best_of_drawn(self, examples: Sequence[Encoded]) -> list[float | None]:
        """Returns the largest reward among each prompt's sampled completions; None if none are sampled or rated."""
        how = self._decoding
        best: list[float | None] = [None] * len(examples)
        if how.sampling is None or how.eval_samples == 1:
            return best
        for sample in range(how.eval_samples):
            draws = Draws(how.sampling, None, [sample] * len(examples))
            written = self._generator.write(examples, draws)
            found = self._counted(examples, written)
            pairs = zip(best, found.totals, strict=True)
            best = [max((v for v in pair if v is not None), default=None) for pair in pairs]
        return best

    def measure_constants(self, train: Sequence[Encoded], examples: Sequence[Encoded]) -> None:
        """Finds the best constant answer and its reward on `examples`; tries the most frequent answers of `train`."""
        frequent = Counter(answer for e in train for answer in e.references if answer)
        texts = dict.fromkeys([*(of for of, _ in frequent.most_common(FREQUENT)), *ANYTHING])
        some = examples[:TRIED]
        every = [Written(text, [], False) for text in texts for _ in some]
        totals = self._rated([*some] * len(texts), every).totals
        means = {
            text: found
            for i, text in enumerate(texts)
            if (found := mean(totals[i * len(some) : (i + 1) * len(some)])) is not None
        }
        if means:
            self.constant = max(means.items(), key=itemgetter(1))

    def _counted(self, examples: Sequence[Encoded], written: Sequence[Written]) -> Ratings:
        """Returns the ratings of texts, and adds these to the tally."""
        found = self._rated(examples, written)
        rows, texts = [e.row for e in examples], [w.text for w in written]
        lengths, cut = [len(w.ids) for w in written], sum(w.truncated for w in written)
        self.tally.see(found, rows, texts, lengths, cut)
        return found

    def _rated(
        self, examples: Sequence[Encoded], written: Sequence[Written], together: bool = False
    ) -> Ratings:
        names = list(examples[0].columns)
        chat = examples[0].messages is not None
        request = Request(
            prompts=[e.prompt for e in examples],
            messages=[e.messages for e in examples] if chat else None,
            texts=[w.text for w in written],
            completion_ids=[w.ids for w in written],
            columns={name: [e.columns[name] for e in examples] for name in names},
            references=[list(e.references) for e in examples],
            state=self._state,
        )
        return self._rater.rate(request, [e.row for e in examples], together)


def text_scorer(
    task: TaskConfig,
    objective: ObjectiveConfig | None,
    model: Any,
    tokenizer: Any,
    processes: Processes | None = None,
    seed: int = 0,
) -> TextScorer:
    """Returns the scorer of generated texts: by an objective's functions, or without one by the task's measure.

    The functions of an objective that is named `measure` rate evaluations alone.
    """
    generator = Generator(model, tokenizer, task.max_new_tokens, task.stop)
    name = task.measure or "f1"
    if objective is not None:
        name = "measure" if objective.name == "measure" else "reward"
    rater = MeasureRater(name) if objective is None else Rater(objective, task)
    sampling = Sampling(task.temperature, task.top_p, seed) if task.temperature > 0 else None
    decoding = Decoding(sampling, task.samples, task.eval_samples)
    return TextScorer(generator, rater, name, processes, decoding)


def _samples(
    examples: Sequence[Encoded], written: Sequence[Written], found: Ratings
) -> list[dict[str, Any]]:
    """Returns the first texts with their rewards and logged columns.

    A function or a logged column with the name of one of the log's own columns gets a prefix.
    """
    rows = []
    for i, (example, text) in enumerate(list(zip(examples, written, strict=True))[:SHOWN]):
        told = {"row": example.row, "prompt": shortened(example.prompt), "text": text.text[:TEXT]}
        row = {**told, "reward": found.totals[i]}
        values = found.values if len(found.values) > 1 else {}
        for prefix, columns in (("rewards/", values), ("extra/", found.extra)):
            taken = {*ADDED, *row}
            row |= {prefix * (name in taken) + name: of[i] for name, of in columns.items()}
        rows.append(row)
    return rows
