"""Examples -> the tokens of their prompt and of every candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.data import Example, template_fields


@dataclass(frozen=True)
class Encoded:
    """One example as token ids.

    Attributes:
        prompt_ids: with the special tokens that the tokenizer puts in front; never empty.
        candidate_ids: per candidate, the tokens that follow the prompt; never empty.
        label: index of the true candidate.
    """

    prompt_ids: list[int]
    candidate_ids: list[list[int]]
    label: int

    @property
    def length(self) -> int:
        """Tokens that a forward pass sees: the prompt and each candidate without its last."""
        return len(self.prompt_ids) + sum(len(ids) - 1 for ids in self.candidate_ids)


def render(task: TaskConfig, example: Example) -> str:
    """The prompt's text."""
    return task.prompt.format(**example.fields)


def encode(task: TaskConfig, tokenizer: Any, examples: Sequence[Example]) -> list[Encoded]:
    """Tokenize prompts and candidates as one text each, then cut them apart.

    A prompt that leaves no room for the longest candidate within ``task.max_length`` loses tokens
    behind its special ones, at its beginning.

    Raises:
        TaskError: an unknown objective, an empty candidate, a candidate whose first letters change
            the prompt's tokens, a ``max_length`` without room for a prompt.
    """
    _check(task)
    if not examples:
        return []
    prefix = len(tokenizer("")["input_ids"])  # special tokens in front, e.g. OPT's </s>
    prompts = [render(task, example) for example in examples]
    prompt_ids = tokenizer(prompts)["input_ids"]
    joined = [
        tokenizer([prompt + candidate for prompt in prompts])["input_ids"]
        for candidate in task.candidates
    ]
    encoded = []
    for i, example in enumerate(examples):
        ids = prompt_ids[i]
        if not ids:
            raise TaskError(f"task.prompt: it renders to no tokens for {example.fields}")
        tails = [
            _tail(task, candidate, prompts[i], ids, joined[c][i])
            for c, candidate in enumerate(task.candidates)
        ]
        room = task.max_length - max(map(len, tails))
        encoded.append(Encoded(_truncate(ids, prefix, room), tails, example.label))
    return encoded


def _check(task: TaskConfig) -> None:
    template_fields(task.prompt)
    if task.objective != "classification":
        raise TaskError(f"task.objective: {task.objective!r} is unknown; use 'classification'")
    if len(task.candidates) < 2:
        raise TaskError(f"task.candidates: {len(task.candidates)} given, at least 2 are needed")
    for candidate in task.candidates:
        if not candidate.strip():
            raise TaskError(f"task.candidates: {candidate!r} is empty, a word is needed")


def _tail(
    task: TaskConfig, candidate: str, prompt: str, prompt_ids: list[int], joined: list[int]
) -> list[int]:
    """The candidate's tokens: what stands behind the prompt's in the joint text."""
    n = len(prompt_ids)
    if joined[:n] != prompt_ids or len(joined) == n:
        raise TaskError(
            f"task.candidates: {candidate!r} changes the last tokens of the prompt"
            f" {prompt[-40:]!r}; end task.prompt at a word and begin the candidate with the space"
        )
    return joined[n:]


def _truncate(prompt_ids: list[int], prefix: int, room: int) -> list[int]:
    """The special tokens in front, then the prompt's end; at most `room` tokens in all."""
    if room <= prefix:
        raise TaskError(f"task.max_length: no room for a prompt, at least {prefix - room + 1} more")
    if len(prompt_ids) <= room:
        return prompt_ids
    return prompt_ids[:prefix] + prompt_ids[len(prompt_ids) - room + prefix :]
