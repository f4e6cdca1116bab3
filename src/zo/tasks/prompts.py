"""Examples -> the tokens of their prompt and of every candidate, for decoder models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from zo.tasks.config import OBJECTIVES, TaskConfig, TaskError
from zo.tasks.data import Example
from zo.tasks.templates import columns, fill


@dataclass(frozen=True)
class Encoded:
    """One example as token ids.

    Attributes:
        prompt_ids: with the special tokens that the tokenizer puts around it; never empty.
        candidate_ids: per candidate, the tokens that follow the prompt or fill its mask; never empty.
        label: index of the true candidate.
        mask_at: where in `prompt_ids` the mask stands; None: candidates follow the prompt.
        cut: tokens that the prompt lost to ``task.max_length``.
    """

    prompt_ids: list[int]
    candidate_ids: list[list[int]]
    label: int
    mask_at: int | None = None
    cut: int = 0

    @property
    def length(self) -> int:
        """Returns the number of tokens that a forward pass sees: the prompt and each candidate without its last."""
        return len(self.prompt_ids) + sum(len(ids) - 1 for ids in self.candidate_ids)

    def true_candidate_alone(self) -> Encoded:
        """Returns the same example with no other candidate than the true one: all that ``lm`` trains on."""
        return replace(self, candidate_ids=[self.candidate_ids[self.label]], label=0)


def render(task: TaskConfig, example: Example) -> str:
    """Returns the prompt's text."""
    return fill(task.prompt, example.fields, "prompt")


def encode(task: TaskConfig, tokenizer: Any, examples: Sequence[Example]) -> list[Encoded]:
    """Tokenizes prompts and candidates as one text each, then cut them apart.

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
    quiet = {"verbose": False}  # about prompts that are too long: they are cut below
    prompt_ids = tokenizer(prompts, **quiet)["input_ids"]
    candidates = [
        [fill(c, example.fields, "candidates") for c in task.candidates] for example in examples
    ]
    joined = [
        tokenizer([p + texts[c] for p, texts in zip(prompts, candidates, strict=True)], **quiet)[
            "input_ids"
        ]
        for c in range(len(task.candidates))
    ]
    encoded = []
    for i, example in enumerate(examples):
        ids = prompt_ids[i]
        if not ids:
            raise TaskError(f"task.prompt: it renders to no tokens for {example.fields}")
        tails = [
            _tail(task, candidate, prompts[i], ids, joined[c][i])
            for c, candidate in enumerate(candidates[i])
        ]
        room = task.max_length - max(map(len, tails))
        kept = _truncate(task, ids, prefix, room)
        encoded.append(Encoded(kept, tails, example.label, cut=len(ids) - len(kept)))
    return encoded


def _check(task: TaskConfig) -> None:
    columns(task.prompt, "prompt")
    if task.objective not in OBJECTIVES:
        raise TaskError(f"task.objective: {task.objective!r} is none of {', '.join(OBJECTIVES)}")
    if len(task.candidates) < 2:
        raise TaskError(f"task.candidates: {len(task.candidates)} given, at least 2 are needed")
    for candidate in task.candidates:
        if not candidate.strip():
            raise TaskError(f"task.candidates: {candidate!r} is empty, a word is needed")


def _tail(
    task: TaskConfig, candidate: str, prompt: str, prompt_ids: list[int], joined: list[int]
) -> list[int]:
    """Returns the candidate's tokens: what stands behind the prompt's in the joint text."""
    n = len(prompt_ids)
    if joined[:n] != prompt_ids or len(joined) == n:
        raise TaskError(
            f"task.candidates: {candidate!r} changes the last tokens of the prompt"
            f" {prompt[-40:]!r}; end task.prompt at a word and begin the candidate with the space"
        )
    return joined[n:]


def _truncate(task: TaskConfig, prompt_ids: list[int], prefix: int, room: int) -> list[int]:
    """Returns the special tokens in front, then the prompt's end; at most `room` tokens in all."""
    if room <= prefix:
        least = task.max_length + prefix - room + 1
        raise TaskError(
            f"task.max_length={task.max_length}: special tokens and the longest answer leave no room for the prompt;"
            f" give at least {least}"
        )
    if len(prompt_ids) <= room:
        return prompt_ids
    return prompt_ids[:prefix] + prompt_ids[len(prompt_ids) - room + prefix :]
