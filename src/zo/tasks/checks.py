"""Warnings about tokenized examples before the first step, and a preview of the first ones."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.examples import Example, Splits
from zo.tasks.prompts import Encoded, render
from zo.tasks.templates import fill, typed

EXAMPLES = 3  # Examples in the preview
SHOWN = 60  # Characters of a text that a warning quotes
LEAKED = 0.9  # Share of prompts that contain their answer from which a warning is given
TOKENS = 40  # Tokens shown at each end of a prompt


def check_tokens(
    task: TaskConfig,
    examples: Mapping[str, Sequence[Example]],
    tokens: Mapping[str, Sequence[Encoded]],
    first: int | None = None,
) -> list[str]:
    """Returns a warning for everything about the tokenized splits that is probably a mistake.

    `first` is the tokenizer's first token, if it has one.

    Raises:
        TaskError: If nothing of the texts is left, or all candidates have the same tokens.
    """
    notes = []
    for split, encoded in tokens.items():
        labels = {e.label for e in encoded}
        compared = task.kind == task.objective == "classification"
        if compared and len(labels) == 1 < len(encoded):
            word = task.words[labels.pop()]
            notes.append(f"task.label: all {len(encoded)} {split} examples are {word!r}")
        rows = [e.row for e in examples[split]]
        if cut := [row for row, e in zip(rows, encoded, strict=True) if e.cut]:
            notes.append(
                f"task.max_length={task.max_length}: {len(cut)} of {len(encoded)} {split} texts are longer and lose"
                f" tokens (the first in the file is row {min(cut)}, counted from 0)"
            )
            if len(cut) == len(encoded) > 1 and len({tuple(e.prompt_ids) for e in encoded}) == 1:
                what = "nothing of the texts is left; give more"
                raise TaskError(f"task.max_length={task.max_length}: {what}")
        twice = [r for r, e in zip(rows, encoded, strict=True) if e.prompt_ids[:2] == [first] * 2]
        if twice:
            notes.append(
                f"task.prompt: {len(twice)} of {len(encoded)} {split} prompts begin with the first token of the"
                f" tokenizer twice (the first is row {min(twice)}, counted from 0); it adds the token, so remove yours"
            )
        every = [(e, turn) for e in encoded for turn in e.messages or ()]
        asked = [(e, turn) for e, turn in every if turn["role"] != "assistant"]  # thoughts may go
        if lost := [e.row for e, t in asked if str(t["content"] or "").strip() not in e.prompt]:
            notes.append(
                f"task.messages: the chat template leaves out or rewrites {len(lost)} of {len(asked)} {split} messages"
                f" of prompts (the first is in row {min(lost)}, counted from 0); see whether it knows their roles"
            )
        missing = [(of, e.row) for e in encoded for of in e.left_out]
        for name in dict.fromkeys(of for of, _ in missing):
            known = {"content": "the trained message", "tools": "the column tools"}
            what = known.get(name, f"the key {name!r} of messages")
            of = [row for key, row in missing if key == name]
            notes.append(
                f"task.messages: the chat template leaves out {what} in {len(of)} of {len(encoded)} {split} rows (the"
                f" first is row {min(of)}, counted from 0)"
            )
        repeats = [len({*map(tuple, e.candidate_ids)}) < len(e.candidate_ids) for e in encoded]
        same = [row for row, of in zip(rows, repeats, strict=True) if of]
        if same and len(same) == len(encoded):
            ids = list(map(tuple, encoded[0].candidate_ids))
            pairs = zip(task.words, ids, strict=False)
            alike = [repr(word) for word, of in pairs if ids.count(of) > 1]
            raise TaskError(
                "task.candidates: two of them have the same tokens in every row; change one"
                + f" of {', '.join(alike)}, which the tokenizer does not tell apart" * bool(alike)
            )
        if same:
            notes.append(
                f"task.candidates: two of them are the same in {len(same)} of {len(encoded)} {split} examples"
                f" (the first in the file is row {min(same)}, counted from 0)"
            )
    return notes


def check_splits(task: TaskConfig, splits: Splits) -> list[str]:
    """Returns a warning for everything about splits of own data that makes their results misleading."""
    notes = []
    texts = {name: [_text(task, e) for e in of] for name, of in vars(splits).items()}
    trained = set(texts["train"])
    for name in ("validation", "test"):
        examples = getattr(splits, name)
        known = [e.row for e, text in zip(examples, texts[name], strict=True) if text in trained]
        if known:
            notes.append(
                f"task.path: {len(known)} of {len(examples)} {name} texts are training texts, too (the first is row"
                f" {known[0]}, counted from 0); remove the copies"
            )
        if len(examples) == 1:
            notes.append(f"task.{name}_size: 1 {name} example; its result says nothing, give more")
    if task.kind == "classification" and splits.test:
        labels = defaultdict(set)
        for name, of in vars(splits).items():
            for example, text in zip(of, texts[name], strict=True):
                labels[text].add(example.label)
        if both := [text for text, of in labels.items() if len(of) > 1]:
            one = shortened(both[0], SHOWN)
            notes.append(f"task.label: {len(both)} texts have two labels (one is {one!r})")
        ((label, count),) = Counter(e.label for e in splits.test).most_common(1)
        advice = "; task.select_by=macro_f1 chooses the best step by all classes alike"
        advice *= 2 * count > len(splits.test) and task.select_by is None
        notes.append(
            f"task.label: {count / len(splits.test):.1%} of the {len(splits.test)} test examples are"
            f" {task.words[label]!r}, which is the accuracy of always predicting it{advice}"
        )
    every = [e for of in vars(splits).values() for e in of]
    if task.kind == "completion" and task.completion is not None and task.references is None:
        notes += _glued(task, every)
    if task.messages is not None:
        notes += [*_empty_turns(task, every), *_untrained_turns(task, splits.train)]
    return notes


def check_answers(encoded: Sequence[Encoded]) -> list[str]:
    """Returns a warning if nearly all prompts contain their own answer as a word."""
    asked = [e for e in encoded if any(of.strip() for of in e.references)]
    told = [e for e in asked if any(_stands_in(of.strip(), e.prompt) for of in e.references)]
    if len(told) < LEAKED * len(asked) or not told:
        return []
    return [
        f"task.prompt: {len(told)} of {len(asked)} prompts contain their answer (the first is row {told[0].row});"
        " leave it out of the prompt, unless the task is to choose it there"
    ]


def _stands_in(answer: str, prompt: str) -> bool:
    """Returns whether a prompt contains an answer as a whole word or number."""
    return bool(answer) and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", prompt) is not None


def _text(task: TaskConfig, example: Example) -> str:
    """Returns the key by which two examples are duplicates: the prompt, with the completion if there is one."""
    if task.kind == "preference":
        from zo.tasks.preferences import pair_of

        return str(pair_of(task, example.fields)) + (render(task, example) if task.prompt else "")
    if task.messages is not None:
        return str(example.fields[task.messages])
    completion = task.completion if task.references is None else None
    return render(task, example) + fill(completion or "", example.fields, "completion")


def _glued(task: TaskConfig, examples: Sequence[Example]) -> Iterator[str]:
    """Yields a warning if a letter or digit of the prompt directly precedes one of the completion."""
    found = []
    for example in examples:
        prompt = render(task, example)
        answer = fill(str(task.completion), example.fields, "completion")
        if prompt[-1:].isalnum() and answer[:1].isalnum():
            found.append((example.row, f"{prompt[-10:]}{answer[:10]}"))
    if found:
        yield (
            f"task.prompt: {len(found)} of {len(examples)} prompts and completions have no space between them (row"
            f" {found[0][0]}: {found[0][1]!r}); {typed('completion', f' {task.completion}')} adds one"
        )


def _empty_turns(task: TaskConfig, examples: Sequence[Example]) -> Iterator[str]:
    """Yields a warning if a message of the assistant is empty."""
    from zo.tasks.conversations import is_empty

    turns = ((e.row, turn) for e in examples for turn in e.fields[str(task.messages)] or ())
    rows = [row for row, turn in turns if turn["role"] == "assistant" and is_empty(turn)]
    if rows:
        yield (
            f"task.messages: {len(rows)} turns of the assistant are empty (the first in row {min(rows)}, counted from"
            " 0); fill or remove them"
        )


def _untrained_turns(task: TaskConfig, examples: Sequence[Example]) -> Iterator[str]:
    """Yields how many earlier messages of the assistant the training texts have that are not trained."""
    turns = [e.fields[str(task.messages)] for e in examples]
    count = sum(t["role"] == "assistant" for of in turns for t in of[:-1])
    if task.kind == "completion" and task.turns != "all" and count:
        yield (
            f"task.turns=last: {count} earlier messages of the assistant in {len(turns)} training conversations are not"
            " trained; task.turns=all trains them in the same pass"
        )


def preview(
    task: TaskConfig, examples: Sequence[Example], encoded: Sequence[Encoded], tokenizer: Any
) -> list[str]:
    """Returns two lines for each of the first examples: its text, and its tokens in brackets."""
    lines = []
    for example, tokens in list(zip(examples, encoded, strict=True))[:EXAMPLES]:
        answer = tokens.candidate_ids[tokens.label] if tokens.candidate_ids else []
        texts = [tokenizer.decode(ids) for ids in (tokens.prompt_ids, answer)]
        lines.append(f"row {example.row}: {shortened(texts[0])!r} -> {texts[1]!r}")
        prompt = "|".join(visible(tokenizer, token) for token in tokens.prompt_ids[-TOKENS:])
        scored = tokens.trained or [True] * len(answer)
        shown = (visible(tokenizer, token) for token in answer[:TOKENS])
        end = "".join(f"[{of}]" if own else of for of, own in zip(shown, scored, strict=False))
        if task.kind == "preference":
            lines.append(f"  and not {shortened(tokenizer.decode(tokens.candidate_ids[1]))!r}")
        lines.append(f"  {len(tokens.prompt_ids)} + {len(answer)} tokens: {prompt} {end}")
    return lines


def shortened(text: str, most: int = 400) -> str:
    """Returns the text; a long one without its middle."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def visible(tokenizer: Any, token: int) -> str:
    """Returns a token's text with marked line breaks; a part of a character as the tokenizer's own name."""
    text = tokenizer.decode([token])
    if not text or "\ufffd" in text:
        text = str(tokenizer.convert_ids_to_tokens(token))
    return text.replace("\n", "⏎")
