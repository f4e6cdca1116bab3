"""What a task is: an address, a template, label words and sizes; nothing but data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# What omegaconf calls MISSING: a value that the YAML file or the command line has to give.
MISSING: Any = "???"

OBJECTIVES = ("classification", "lm")


class TaskError(ValueError):
    """A task that cannot be used as configured; one sentence that names the key."""


@dataclass
class TaskConfig:
    """One task.

    Attributes:
        name: registry name, the YAML file's name.
        path: hub id, local directory, or a file format (csv, json, parquet) read from `data_files`.
        subset: the hub's configuration name, e.g. ``sst2`` of ``nyu-mll/glue``.
        data_dir: folder inside the repository or directory that holds this task's files.
        revision: the hub's commit or branch.
        data_files: split -> file; ``package:<package>/<file>`` is a file inside a pip package.
        where: column -> value; only rows that have these values count.
        train_split: training and validation examples come from here.
        test_split: None: test examples follow them in the same permutation of `train_split`.
        label_field: column that tells the true candidate.
        labels: its value for each candidate, in their order; None: 0, 1, ...
        prompt: template over the columns, for decoder models; see `zo.tasks.templates`.
        candidates: index = label; templates, too; each is appended to the prompt, leading space included.
        masked_prompt: template with one ``<mask>``, for masked models; None: not for them.
        label_words: index = label; what fills the mask; one token each, leading space included.
        objective: ``classification``: cross entropy over the candidates' scores; ``lm``: negative
            log-likelihood of the true candidate's tokens. Predictions are the best score either way.
        train_size: examples, exact.
        validation_size: examples, exact.
        test_size: examples; at most this many of `test_split`, exactly this many without one.
        train_set_seed: of the permutation that training and validation examples are drawn by.
        split_order: ``shuffled``, or ``first``: the first rows in the order of the file.
        max_length: tokens of prompt and longest candidate, > 0; a longer prompt loses its beginning,
            a longer masked prompt the beginning of its longest column.
        install: the command that brings the data, shown when they cannot be found.
    """

    name: str = MISSING
    path: str = MISSING
    subset: str | None = None
    data_dir: str | None = None
    revision: str | None = None
    data_files: dict[str, str] | None = None
    where: dict[str, Any] | None = None
    train_split: str = "train"
    test_split: str | None = "validation"
    label_field: str = "label"
    labels: list[Any] | None = None
    prompt: str = MISSING
    candidates: list[str] = MISSING
    masked_prompt: str | None = None
    label_words: list[str] | None = None
    objective: str = "classification"
    train_size: int = MISSING
    validation_size: int = MISSING
    test_size: int = MISSING
    train_set_seed: int = 0
    split_order: str = "shuffled"
    max_length: int = 256
    install: str | None = None

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, what would be right) of every value out of range."""
        sizes = ("train_size", "validation_size", "test_size", "max_length")
        found = [(key, "must be at least 1") for key in sizes if getattr(self, key) < 1]
        if len(self.candidates) < 2 or not all(c.strip() for c in self.candidates):
            found.append(("candidates", "must be at least two words"))
        for key in ("candidates", "labels", "label_words"):
            given = getattr(self, key) or []
            if twice := [repr(x) for i, x in enumerate(given) if x in given[:i]]:
                found.append((key, f"must differ, but {twice[0]} is there twice"))
        for key in ("labels", "label_words"):
            given = getattr(self, key)
            if given is not None and len(given) != len(self.candidates):
                found.append((key, f"must be as many as task.candidates, {len(self.candidates)}"))
        if self.masked_prompt is not None and self.label_words is None:
            found.append(("label_words", "must be given with task.masked_prompt"))
        if self.objective not in OBJECTIVES:
            found.append(("objective", f"must be {' or '.join(OBJECTIVES)}"))
        if self.split_order not in ("shuffled", "first"):
            found.append(("split_order", "must be shuffled or first"))
        if self.train_set_seed < 0:
            found.append(("train_set_seed", "must be at least 0"))
        return found
