"""What a task is: an address, a template, label words and sizes; nothing but data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# What omegaconf calls MISSING: a value that the YAML file or the command line has to give.
MISSING: Any = "???"

KINDS = ("classification", "completion", "prompts", "preference")
OBJECTIVES = ("classification", "lm")
MEASURES = ("exact_match", "f1", "rouge_l")
"""Measures of generated text, see `zo.tasks.measures`."""

SELECTORS = ("accuracy", "macro_f1", "loss")
TURNS = ("last", "all")
ORDERS = ("shuffled", "stratified", "first")

GENERATED = "reasoning_gym:"
"""Prefix of `task.path` of a generated task; the name of reasoning-gym's task follows."""

MOST_SAMPLES = 4096

AUTO = "auto"
"""Value of a split that is used if the data have it."""


class TaskError(ValueError):
    """A task that cannot be used as configured; one sentence that names the key.

    Attributes:
        traceback: Whether its traceback is of the user's own code, and helps.
    """

    traceback = False


@dataclass
class TaskConfig:
    """One task.

    `zo.tasks.own` completes from the data what is None: columns, labels, prompt, candidates, splits and sizes.

    Attributes:
        name: registry name, the YAML file's name.
        path: a csv, tsv, json, jsonl or parquet file, a hub id, a directory of a dataset, or a file format
            (csv, json, parquet) read from `data_files`.
        kind: ``classification``: candidates, of which one is true; ``completion``: a text that follows the prompt;
            ``prompts``: prompts alone; ``preference``: two answers to a prompt, of which one is preferred.
        subset: the hub's configuration name, e.g. ``sst2`` of ``nyu-mll/glue``.
        data_dir: folder inside the repository or directory that holds this task's files.
        revision: the hub's commit or branch.
        data_files: split -> file; ``package:<package>/<file>`` is a file inside a pip package.
        where: column -> value, or a list of values; only rows with one of them are used.
        train_split: training examples come from here.
        validation_split: None: validation examples are the next ones in the permutation of `train_split`; ``auto``: a
            split of that name, if there is one.
        test_split: None: test examples are the next ones after those; ``auto``: as above.
        text: column with the text, or a template of several columns; used if there is no `prompt`.
        label: column with the true candidate's label. With `choices`, it lists the true choices.
        labels: its value for each candidate, in their order; None: 0, 1, ...
        prompt: template over the columns, for decoder models; see `zo.tasks.templates`.
        candidates: index = label; templates, too; each is appended to the prompt, leading space included.
        choices: column with a row's own list of choices; the one template in `candidates` is filled for each.
        placeholder: text in the filled candidate that a choice replaces.
        completion: column or template of the completion.
        messages: column with a conversation. The tokenizer's chat template renders it; the assistant's last
            message is the completion. Messages may have `tool_calls`; a column `tools` goes to the template, too.
        turns: which of the assistant's messages are trained: the ``last``, or ``all`` in one pass.
        chosen: of preferences: column or template of the preferred answer, or column with a conversation that ends
            with it.
        rejected: of preferences: the same of the other answer. Without a prompt, what both begin with is the prompt.
        references: column with all right answers, for `measure`; None: the completion.
        measure: of generated text: ``exact_match``, ``f1``, ``rouge_l``, or ``my.py:function``, which is called as a
            reward function is; None: accuracy of a classification, perplexity of completions.
        select_by: validation number that chooses a run's best step, and tables' learning rates: ``accuracy``,
            ``macro_f1`` or ``loss``; None: the measure that is reported.
        stop: text that ends a completion, besides the ends of sequence of tokenizer and model.
        max_new_tokens: generated tokens at most.
        samples: texts per prompt and step, ≥ 1; more than one needs a temperature.
        temperature: of a step's sampling, ≥ 0; 0 decodes greedily.
        top_p: nucleus sampling: total probability of the smallest set of tokens to sample from, in (0, 1].
        eval_samples: sampled completions per prompt in evaluations; from 2 on their best number is reported as pass@k.
            Evaluations always decode greedily, too.
        masked_prompt: template with one ``<mask>``; None: the task is not for masked models.
        label_words: index = label; what fills the mask; one token each, leading space included.
        objective: ``classification``: cross entropy over the candidates' scores; ``lm``: negative
            log-likelihood of the true candidate's tokens. Predictions are the best score either way.
        train_size: examples, exact; None: all that remain.
        validation_size: examples, exact; None: the whole split, or a tenth of `train_split`.
        test_size: examples; at most this many of `test_split`, exactly this many without one; None: as validation.
        train_set_seed: of the permutation that chooses training and validation examples.
        split_order: ``shuffled``; ``stratified``: shuffled, with equal shares of each label in all splits;
            ``first``: the first rows in the order of the file.
        max_length: tokens of prompt and longest candidate, > 0; a longer prompt loses its beginning,
            a longer masked prompt the beginning of its longest column.
        options: of a generated task, see `zo.tasks.generated`.
        install: the command that installs the data, shown when they cannot be found.
        also: another task, whose validation split every evaluation scores, too: a name of conf/task, `reasoning_gym:`
            and the name of a task that is generated, or a mapping with `name` or `path` and what differs from its file.
    """

    name: str = MISSING
    path: str = MISSING
    kind: str = "classification"
    subset: str | None = None
    data_dir: str | None = None
    revision: str | None = None
    data_files: dict[str, str] | None = None
    where: dict[str, Any] | None = None
    train_split: str = "train"
    validation_split: str | None = None
    test_split: str | None = "validation"
    text: str | None = None
    label: str | None = "label"
    labels: list[Any] | None = None
    prompt: str | None = None
    candidates: list[str] | None = None
    choices: str | None = None
    placeholder: str | None = None
    completion: str | None = None
    messages: str | None = None
    turns: str = "last"
    chosen: str | None = None
    rejected: str | None = None
    references: str | None = None
    measure: str | None = None
    select_by: str | None = None
    stop: str | None = None
    max_new_tokens: int = 50
    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    eval_samples: int = 1
    masked_prompt: str | None = None
    label_words: list[str] | None = None
    objective: str = "classification"
    train_size: int | None = None
    validation_size: int | None = None
    test_size: int | None = None
    train_set_seed: int = 0
    split_order: str = "shuffled"
    max_length: int = 256
    options: dict[str, Any] = field(default_factory=dict)
    install: str | None = None
    also: Any = None

    @property
    def words(self) -> list[str]:
        """The candidates; empty if there are none, or if they are not yet read from the data."""
        return self.candidates or []

    @property
    def own_measure(self) -> str:
        """The address of the user's function that measures texts; empty if there is none."""
        measure = self.measure or ""
        return measure if all(measure.partition(":")[::2]) else ""

    def generated_by(self) -> dict[str, Any]:
        """Returns `name` and `options` of reasoning-gym's task; empty if the data come from a file."""
        if not self.path.startswith(GENERATED):
            return {}
        return {"name": self.path.removeprefix(GENERATED), "options": dict(self.options)}

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, valid range) of each invalid value."""
        sizes = ("train_size", "validation_size", "test_size", "max_length", "max_new_tokens")
        found = [
            (key, "must be at least 1")
            for key in sizes
            if getattr(self, key) is not None and getattr(self, key) < 1
        ]
        found += self._sampling_problems()
        if self.kind not in KINDS:
            found.append(("kind", f"must be one of {', '.join(KINDS)}"))
        if self.own_measure and self.kind != "completion":
            found.append(
                ("measure", "must be null: a function is for the texts of task=completion")
            )
        elif self.measure not in (None, *MEASURES) and not self.own_measure:
            found.append(("measure", f"must be one of {', '.join(MEASURES)}, or my.py:function"))
        if self.select_by not in (None, *SELECTORS):
            found.append(("select_by", f"must be one of {', '.join(SELECTORS)}, or null"))
        if self.turns not in TURNS:
            found.append(("turns", f"must be {' or '.join(TURNS)}"))
        elif self.turns == "all" and (self.kind != "completion" or self.measure or self.stop):
            right = "must be last, but for perplexity of task=completion without task.stop"
            found.append(("turns", right))
        if not str(self.path).strip():
            found.append(("path", "must be a file, a directory or a hub id"))
        found += self._candidate_problems()
        if self.objective not in OBJECTIVES:
            found.append(("objective", f"must be {' or '.join(OBJECTIVES)}"))
        if self.split_order not in ORDERS:
            found.append(("split_order", f"must be one of {', '.join(ORDERS)}"))
        if self.train_set_seed < 0:
            found.append(("train_set_seed", "must be at least 0"))
        return found

    def _sampling_problems(self) -> list[tuple[str, str]]:
        """Returns the problems of the settings of sampling."""
        found = []
        for key in ("samples", "eval_samples"):
            if not 1 <= getattr(self, key) <= MOST_SAMPLES:
                found.append((key, f"must be 1 to {MOST_SAMPLES}"))
            elif getattr(self, key) > 1 and self.temperature == 0:
                found.append(
                    (key, "must be 1, or task.temperature above 0: all texts would be equal")
                )
        if self.temperature < 0:
            found.append(("temperature", "must be at least 0"))
        if not 0 < self.top_p <= 1:
            found.append(("top_p", "must be above 0, and at most 1"))
        return found

    def _candidate_problems(self) -> list[tuple[str, str]]:
        """Returns the problems of candidates, labels and label words."""
        found = []
        least = 1 if self.choices else 2
        words = self.candidates
        if words is not None and (len(words) < least or not all(c.strip() for c in words)):
            found.append(("candidates", "must be at least two words"))
        for key in ("candidates", "labels", "label_words"):
            given = getattr(self, key) or []
            if twice := [repr(x) for i, x in enumerate(given) if x in given[:i]]:
                found.append((key, f"must differ, but {twice[0]} is there twice"))
        for key in ("labels", "label_words"):
            given = getattr(self, key)
            if None not in (given, words) and len(given) != len(words or ()):
                found.append((key, f"must be as many as task.candidates, {len(words or ())}"))
        if self.masked_prompt is not None and self.label_words is None and words is not None:
            found.append(("label_words", "must be given with task.masked_prompt"))
        return found
