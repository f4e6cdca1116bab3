"""Texts that a model writes: greedy, in batches, with a cache, the same ones every time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zo.tasks.config import TaskError
from zo.tasks.prompts import Encoded


class Generator:
    """Writes what follows prompts.

    Args:
        model: As `zo.lm.load.load` returns it.
        tokenizer: Of the model.
        max_new_tokens: Tokens at most.
        stop: Text that ends what is written; None: the tokenizer's end of sequence.
    """

    def __init__(self, model: Any, tokenizer: Any, max_new_tokens: int, stop: str | None) -> None:
        self._model, self._tokenizer, self._stop = model, tokenizer, stop
        self._left = not model.config.is_encoder_decoder
        ends = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
        if stop:
            ends += tokenizer(stop, add_special_tokens=False)["input_ids"][-1:]
        self.max_new_tokens = max_new_tokens
        self._options = {
            "max_new_tokens": max_new_tokens,
            "do_sample": False,
            "num_beams": 1,
            "repetition_penalty": 1.0,
            "use_cache": True,
            "eos_token_id": ends or None,
            "pad_token_id": tokenizer.pad_token_id,
        }

    def check(self, examples: Sequence[Encoded]) -> None:
        """Makes sure that the model sees the longest prompt and what follows.

        Raises:
            TaskError: If it does not; names the row.
        """
        most = getattr(self._model.config, "max_position_embeddings", None)
        if most is None or not self._left:
            return
        for example in examples:
            needed = len(example.prompt_ids) + self.max_new_tokens
            if needed > most:
                raise TaskError(
                    f"task.max_new_tokens={self.max_new_tokens}: row {example.row} has {len(example.prompt_ids)} prompt"
                    f" tokens, but the model sees {most} in all; lower it or task.max_length"
                )

    @torch.inference_mode()
    def __call__(self, examples: Sequence[Encoded]) -> list[str]:
        """Returns the text that follows each prompt, without its end."""
        width = max(len(e.prompt_ids) for e in examples)
        pad, rows, masks = self._options["pad_token_id"], [], []
        for example in examples:
            padding = [pad] * (width - len(example.prompt_ids))
            seen = [1] * len(example.prompt_ids)
            zeros = [0] * len(padding)
            rows.append(
                padding + example.prompt_ids if self._left else example.prompt_ids + padding
            )
            masks.append(zeros + seen if self._left else seen + zeros)
        device = self._model.device
        written = self._model.generate(
            torch.tensor(rows, device=device),
            attention_mask=torch.tensor(masks, device=device),
            **self._options,
        )
        written = written[:, width:] if self._left else written
        texts = self._tokenizer.batch_decode(written, skip_special_tokens=True)
        return [text.partition(self._stop)[0] if self._stop else text for text in texts]
