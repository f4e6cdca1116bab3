"""Texts that a model writes: greedy, in batches, with a cache, the same ones every time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        stop: Text that ends what is written, besides the ends of sequence of tokenizer and model.
    """

    def __init__(self, model: Any, tokenizer: Any, max_new_tokens: int, stop: str | None) -> None:
        self._model, self._tokenizer, self._stop = model, tokenizer, stop
        self._left = not model.config.is_encoder_decoder
        self.max_new_tokens = max_new_tokens
        self._options = {
            "max_new_tokens": max_new_tokens,
            "do_sample": False,
            "num_beams": 1,
            "repetition_penalty": 1.0,
            "use_cache": True,
            "eos_token_id": _ends(model, tokenizer) or None,
            "pad_token_id": tokenizer.pad_token_id,
        }

    def check(self, examples: Sequence[Encoded]) -> None:
        """Makes sure that the model sees the longest prompt and what follows.

        Raises:
            TaskError: If it does not; names the row.
        """
        most = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
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
            stopping_criteria=self._criteria(width if self._left else 0),
            **self._options,
        )
        written = written[:, width:] if self._left else written
        texts = self._texts(written)
        return [text.partition(self._stop)[0] if self._stop else text for text in texts]

    def _texts(self, written: torch.Tensor) -> list[str]:
        return self._tokenizer.batch_decode(written, skip_special_tokens=True)  # type: ignore[no-any-return]

    def _criteria(self, begin: int) -> list[Callable[..., torch.Tensor]]:
        """Returns what tells which rows contain the stop behind their first tokens, if there is a stop.

        Unlike `stop_strings` of transformers, it does not count a stop that begins in the prompt.
        """

        def stopped(rows: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            found = [str(self._stop) in text for text in self._texts(rows[:, begin:])]
            return torch.tensor(found, device=rows.device)

        return [stopped] if self._stop else []


def _ends(model: Any, tokenizer: Any) -> list[int]:
    """Returns the tokens that end a text by the tokenizer or by the model's generation settings."""
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = [tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])]
    return sorted({end for end in ends if end is not None})
