"""Scores of encoder-decoder models as T5: the encoder reads a prompt once, the decoder each of its candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from zo.lm.scoring.candidates import CandidateScorer
from zo.lm.scoring.collate import PlainBatch, candidates, check_vocabulary
from zo.tasks.prompts import Encoded


class EncoderDecoderScorer(CandidateScorer):
    """Scores, loss and predictions of an encoder-decoder model. Nothing is packed: each prompt has a row of its own."""

    def _prepare(self, model: Any, pad_id: int, kind: str, multiple: int | None) -> None:
        self._model, self._rows = model, None
        self._collator = PairCollator(model, pad_id)  # type: ignore[assignment]
        start = model.config.decoder_start_token_id
        self._start = pad_id if start is None else start

    def _values(self, batch: Any) -> Tensor:
        """Returns each token's log-probability.  # (B, C, T)."""
        candidates, width = batch.token_ids.shape[1:]
        states = self._model.get_encoder()(batch.input_ids, attention_mask=batch.mask)
        states.last_hidden_state = states.last_hidden_state.repeat_interleave(candidates, 0)
        begun = F.pad(batch.token_ids[..., :-1], (1, 0), value=self._start)
        logits = self._model(
            encoder_outputs=states,
            attention_mask=batch.mask.repeat_interleave(candidates, 0),
            decoder_input_ids=begun.flatten(0, 1),
            use_cache=False,
        ).logits.view(-1, candidates, width, self._model.config.vocab_size)
        values = F.log_softmax(logits, dim=-1, dtype=self._loss_dtype)
        return values.gather(-1, batch.token_ids[..., None])[..., 0].masked_fill(batch.absent, 0)


class PairCollator:
    """Makes batches for an encoder-decoder model."""

    def __init__(self, model: Any, pad_id: int) -> None:
        self._device, self._pad = next(model.parameters()).device, pad_id
        self._vocabulary = model.config.vocab_size

    def __call__(self, examples: Sequence[Encoded], groups: object = None) -> PlainBatch:
        """Builds the batch; `groups` is not used."""
        prompts = pad_sequence([torch.tensor(e.prompt_ids) for e in examples], True, self._pad)
        lengths = torch.tensor([[len(e.prompt_ids)] for e in examples])
        mask = (torch.arange(prompts.shape[1]) < lengths).long()
        own = {name: torch.from_numpy(a) for name, a in candidates(examples, self._pad).items()}
        tensors = {"input_ids": prompts, "mask": mask, **own}
        return PlainBatch(**{name: t.to(self._device) for name, t in tensors.items()})

    def check(self, examples: Sequence[Encoded]) -> None:
        """Makes sure that the tokens are the model's.

        Raises:
            ModelError: If one is not in its vocabulary.
        """
        check_vocabulary(examples, self._pad, self._vocabulary)

    def rows(self, examples: Sequence[Encoded]) -> list[list[int]]:
        """Returns which examples share a row: none."""
        return [[i] for i in range(len(examples))]

    def cost(self, example: Encoded) -> int:
        """Returns how many tokens an example takes in a forward pass."""
        return example.length
