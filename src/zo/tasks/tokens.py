"""Tokens of examples, for every kind of model; for masked models of a prompt with one mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.examples import Example
from zo.tasks.prompts import Encoded, encode
from zo.tasks.templates import MASK, pieces, task_columns

Span = tuple[int, int]  # Begin and end of a part of a text, in characters


def tokenize(
    task: TaskConfig, tokenizer: Any, examples: Sequence[Example], kind: str
) -> list[Encoded]:
    """Returns the examples as tokens. Raises TaskError if the task does not fit this kind of model, or as `encode`."""
    if kind != "masked":
        return encode(task, tokenizer, examples, kind)
    if task.kind != "classification":
        raise TaskError(f"task.kind={task.kind}: a masked model generates no text; use a decoder")
    return encode_masked(task, tokenizer, examples)


def encode_masked(task: TaskConfig, tokenizer: Any, examples: Sequence[Example]) -> list[Encoded]:
    """Tokenizes prompts with their mask; candidates are the label words, one token each.

    A prompt of more than ``task.max_length`` tokens loses the first tokens of its longest column. The mask, the
    template's words and the other columns stay.

    Raises:
        TaskError: no masked prompt, a tokenizer without a mask, a label word that is not one token,
            a ``max_length`` without room.
    """
    words = [[token] for token in _label_tokens(task, tokenizer)]
    if not examples:
        return []
    rendered = [_render(task, example, tokenizer.mask_token) for example in examples]
    texts = [text for text, _, _ in rendered]
    encoding = tokenizer(texts, return_offsets_mapping=True, verbose=False)
    encoded = []
    for i, (_, columns, mask) in enumerate(rendered):
        ids, offsets = encoding["input_ids"][i], encoding["offset_mapping"][i]
        mask_at = _place_of_mask(ids, offsets, mask, tokenizer.mask_token_id)
        dropped = _dropped(task, offsets, columns, mask_at)
        kept = [token for place, token in enumerate(ids) if place not in dropped]
        mask_at -= sum(place < mask_at for place in dropped)
        encoded.append(Encoded(kept, words, examples[i].label, mask_at, len(dropped)))
    return encoded


def _label_tokens(task: TaskConfig, tokenizer: Any) -> list[int]:
    task_columns(task)  # checks the templates
    if task.masked_prompt is None or task.label_words is None:
        raise TaskError(f"task.masked_prompt: {task.name} has none, which a masked model needs")
    if tokenizer.mask_token_id is None:
        raise TaskError("model.kind: the model's tokenizer has no mask token")
    if len(task.label_words) != len(task.words):
        raise TaskError(f"task.label_words: {len(task.words)} are needed, as task.candidates")
    tokens = []
    for word in task.label_words:
        ids = tokenizer(word, add_special_tokens=False)["input_ids"]
        if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
            parts = " ".join(tokenizer.convert_ids_to_tokens(ids))
            what = f"{word!r} is not one token of the model"
            raise TaskError(f"task.label_words: {what}, but {parts}")
        tokens += ids
    if len(set(tokens)) < len(tokens):
        raise TaskError(f"task.label_words: {task.label_words} are not different tokens")
    return tokens


def _render(task: TaskConfig, example: Example, mask_token: str) -> tuple[str, list[Span], Span]:
    """Returns the prompt's text, and the spans of the columns and of the mask."""
    text, columns, mask = "", [], (0, 0)
    for piece, is_column in pieces(str(task.masked_prompt), example.fields, "masked_prompt"):
        if is_column:
            columns.append((len(text), len(text) + len(piece)))
            text += piece
            continue
        before, found, after = piece.partition(MASK)
        text += before
        if found:
            mask = (len(text), len(text) + len(mask_token))
            text += mask_token
        text += after
    return text, columns, mask


def _place_of_mask(ids: list[int], offsets: list[Span], mask: Span, mask_id: int) -> int:
    """Returns the position of the template's mask, even if the data contain a mask, too."""
    places = [i for i, token in enumerate(ids) if token == mask_id and offsets[i][1] == mask[1]]
    if len(places) != 1:
        raise TaskError(f"task.masked_prompt: the model's tokenizer makes no token of {MASK}")
    return places[0]


def _dropped(
    task: TaskConfig, offsets: list[Span], columns: list[Span], mask_at: int
) -> frozenset[int]:
    """Returns the positions that a prompt of more than `max_length` tokens loses."""
    excess = len(offsets) - task.max_length
    if excess <= 0:
        return frozenset()
    tokens_of = [
        [
            i
            for i, (begin, end) in enumerate(offsets)
            if begin < end and begin < last and end > first and i != mask_at
        ]
        for first, last in columns
    ]
    longest = max(tokens_of, key=len, default=[])
    if excess >= len(longest):
        raise TaskError(
            f"task.max_length={task.max_length}: the template leaves no room for the texts; give at least"
            f" {task.max_length + excess - len(longest) + 1}"
        )
    return frozenset(longest[:excess])
