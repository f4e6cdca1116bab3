"""Generates tokens after prompts with a key-value cache, and drops rows that have ended."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Choose = Callable[[Tensor, int, Tensor], Tensor]
"""Function of row numbers, position and scores, (rows, vocabulary), that returns a token for each row."""

Ended = Callable[[Tensor], Tensor]
"""Function of the tokens so far, (rows, positions), that returns whether each row's text has ended."""

WORTHWHILE = 0.8
"""Rows are dropped if at most this share of them is needed, since dropping copies the cache."""


def most_probable(rows: Tensor, position: int, scores: Tensor) -> Tensor:
    """Returns the most probable token of each row."""
    return scores.argmax(-1)


def can_decode(model: Any) -> bool:
    """Returns whether a model's cache has separate keys and values for each row, so that rows can be dropped."""
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    known = inspect.signature(model.forward).parameters
    if not {"past_key_values", "attention_mask"} <= known.keys():
        return False
    if model.config.is_encoder_decoder or getattr(model, "_is_stateful", False):
        return False
    layers = DynamicCache(config=model.config).layers
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


class Decoder:
    """Generates tokens by a model for which `can_decode` is true; `pad` follows a row's end, one of `ends`."""

    def __init__(self, model: Any, pad: int, ends: Sequence[int]) -> None:
        self._model, self._pad = model, pad
        self._ends = torch.tensor(ends, device=model.device)
        known = inspect.signature(model.forward).parameters
        self._positions = "position_ids" in known
        self._last = {"logits_to_keep": 1} if "logits_to_keep" in known else {}

    @torch.inference_mode()
    def __call__(
        self,
        ids: Tensor,
        mask: Tensor,
        most: int,
        choose: Choose = most_probable,
        ended: Ended | None = None,
        parts: int = 1,
    ) -> Tensor:
        """Returns the tokens after each row, (rows, positions), with `pad` after an end.

        `ids` are prompts, padded on the left, (rows, width); `mask` is 0 at padding, else 1. There are `most` positions
        at most. `ended` finds ends other than end tokens. `parts` is the number of branches, with equally many
        consecutive rows each; this stays so when rows are dropped.
        """
        from transformers.cache_utils import DynamicCache

        cache = DynamicCache(config=self._model.config)
        written = torch.full((len(ids), most), self._pad, device=ids.device)
        done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        rows = torch.arange(len(ids), device=ids.device)
        places = (mask.cumsum(-1) - 1).clamp_(min=0)
        for position in range(most):
            more = {"position_ids": places} if self._positions else {}
            output = self._model(
                input_ids=ids,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
                **self._last,
                **more,
            )
            tokens = choose(rows, position, output.logits[:, -1].float())
            written[rows, position] = torch.where(done[rows], self._pad, tokens)
            found = torch.isin(tokens, self._ends)
            if ended is not None:
                found |= ended(written[rows, : position + 1])
            done[rows] |= found
            if bool(done.all()):
                return written[:, : position + 1]
            kept = needed(done[rows], parts)
            if kept is not None:
                rows, mask, places = rows[kept], mask[kept], places[kept]
                cache.batch_select_indices(kept)
            ids, places = written[rows, position, None], places[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
        return written


def needed(done: Tensor, parts: int) -> Tensor | None:
    """Returns the rows that are not done, equally many of each of `parts`; None if too few can be dropped."""
    of_parts = done.view(parts, -1)
    most = int((~of_parts).sum(1).max())
    if most > WORTHWHILE * of_parts.shape[1]:
        return None
    first = of_parts.int().sort(dim=1, stable=True).indices[:, :most]  # those that have not ended
    first = first.sort(dim=1).values
    return (first + torch.arange(parts, device=done.device)[:, None] * of_parts.shape[1]).flatten()
