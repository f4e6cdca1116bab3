"""The first training examples for people: as text and as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zo.tasks.config import TaskConfig
from zo.tasks.data import Example
from zo.tasks.prompts import Encoded

EXAMPLES = 3
TOKENS = 40
"""Shown at each end of a prompt."""


def preview(
    task: TaskConfig, examples: Sequence[Example], encoded: Sequence[Encoded], tokenizer: Any
) -> list[str]:
    """Returns two lines for each of the first examples: its text, and its tokens with their borders."""
    lines = []
    for example, tokens in list(zip(examples, encoded, strict=True))[:EXAMPLES]:
        answer = tokens.candidate_ids[tokens.label] if tokens.candidate_ids else []
        texts = [tokenizer.decode(ids) for ids in (tokens.prompt_ids, answer)]
        lines.append(f"row {example.row}: {shortened(texts[0])!r} -> {texts[1]!r}")
        prompt = "|".join(visible(tokenizer, token) for token in tokens.prompt_ids[-TOKENS:])
        end = "".join(f"[{visible(tokenizer, token)}]" for token in answer[:TOKENS])
        lines.append(f"  {len(tokens.prompt_ids)} + {len(answer)} tokens: {prompt} {end}")
    return lines


def shortened(text: str, most: int = 400) -> str:
    """Returns the text, its middle left out if it is long."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def visible(tokenizer: Any, token: int) -> str:
    """Returns a token's text, its line breaks marked; a part of a letter as the tokenizer names it."""
    text = tokenizer.decode([token])
    if not text or "\ufffd" in text:
        text = str(tokenizer.convert_ids_to_tokens(token))
    return text.replace("\n", "⏎")
