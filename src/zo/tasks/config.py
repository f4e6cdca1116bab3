"""What a task is: an address, a template, label words and sizes; nothing but data."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from zo.optim.config import (
    AtLeast0,
    AutoCount,
    Count,
    Range,
    Rule,
    Settings,
    Share,
    Steps,
    one_of,
    or_null,
    within,
)

# What omegaconf calls MISSING: a value that the YAML file or the command line has to give.
MISSING: Any = "???"

MEASURES = ("exact_match", "f1", "rouge_l")  # Measures of generated text, see `zo.tasks.measures`

GENERATED = "reasoning_gym:"
"""Prefix of `task.path` of a generated task; the name of reasoning-gym's task follows."""

Samples = Annotated[int, within(1, 4096)]

AUTO = "auto"  # Value of a split that is used if the data have it


class TaskError(ValueError):
    """A task that cannot be used as configured; one sentence that names the key.

    Attributes:
        traceback: Whether its traceback is of the user's own code, and helps.
    """

    traceback = False


def _is_measure(measure: Any) -> bool:
    return measure is None or measure in MEASURES or all(measure.partition(":")[::2])


@dataclass
class TaskConfig(Settings):
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
    path: Annotated[
        str, Range(lambda x: bool(x.strip()), "must be a file, a directory or a hub id")
    ] = MISSING
    kind: Annotated[str, one_of("classification", "completion", "prompts", "preference")] = (
        "classification"
    )
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
    turns: Annotated[str, one_of("last", "all")] = "last"
    chosen: str | None = None
    rejected: str | None = None
    references: str | None = None
    measure: Annotated[
        str | None, Range(_is_measure, f"must be one of {', '.join(MEASURES)}, my.py:function, or null")
    ] = None  # fmt: skip
    select_by: Annotated[str | None, or_null(one_of("accuracy", "macro_f1", "loss"))] = None
    stop: str | None = None
    max_new_tokens: Count = 50
    samples: Samples = 1
    temperature: AtLeast0 = 0.0
    top_p: Share = 1.0
    eval_samples: Samples = 1
    masked_prompt: str | None = None
    label_words: list[str] | None = None
    objective: Annotated[str, one_of("classification", "lm")] = "classification"
    train_size: AutoCount = None
    validation_size: AutoCount = None
    test_size: AutoCount = None
    train_set_seed: Steps = 0
    split_order: Annotated[str, one_of("shuffled", "stratified", "first")] = "shuffled"
    max_length: Count = 256
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

    rules = (
        Rule("measure", lambda of: not of.own_measure or of.kind == "completion",
             "must be null: a function is for the texts of task=completion"),
        Rule("turns", lambda of: of.turns != "all" or (of.kind == "completion" and not (of.measure or of.stop)),
             "must be last, but for perplexity of task=completion without task.stop"),
        Rule("samples", lambda of: of.samples == 1 or of.temperature != 0,
             "must be 1, or task.temperature above 0: all texts would be equal"),
        Rule("eval_samples", lambda of: of.eval_samples == 1 or of.temperature != 0,
             "must be 1, or task.temperature above 0: all texts would be equal"),
        Rule("candidates", lambda of: of.candidates is None or (
                len(of.words) >= (1 if of.choices else 2) and all(c.strip() for c in of.words)),
             "must be at least two words"),
        Rule("label_words", lambda of: None in (of.masked_prompt, of.candidates) or of.label_words is not None,
             "must be given with task.masked_prompt"),
    )  # fmt: skip

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, valid range) of each invalid value."""
        found, words = super().problems(), self.candidates
        for key in ("candidates", "labels", "label_words"):
            given = getattr(self, key) or []
            if twice := [repr(x) for i, x in enumerate(given) if x in given[:i]]:
                found.append((key, f"must differ, but {twice[0]} is there twice"))
        for key in ("labels", "label_words"):
            given = getattr(self, key)
            if None not in (given, words) and len(given) != len(words or ()):
                found.append((key, f"must be as many as task.candidates, {len(words or ())}"))
        return found
