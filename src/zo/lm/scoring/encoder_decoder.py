"""Scores of encoder-decoder models, as T5: the encoder reads a prompt once, the decoder each candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from zo.lm.config import StatesError
from zo.lm.scoring.candidates import CandidateScorer
from zo.lm.scoring.collate import Batch, candidates, check_vocabulary
from zo.lm.scoring.heads import by_length
from zo.lm.scoring.states import KeptStates
from zo.tasks.prompts import Encoded
from zo.weights.offloaded import device_of


class EncoderDecoderScorer(CandidateScorer):
    """Scores, loss and predictions of an encoder-decoder model. Each prompt has its own row."""

    def _prepare(self, model: Any, pad_id: int, kind: str, multiple: int | None) -> None:
        self._model, self._rows, self._head = model, None, lambda logits: logits
        self._collator = PairCollator(model, pad_id)  # type: ignore[assignment]
        start = getattr(model.config, "decoder_start_token_id", None)
        if start is None and hasattr(model, "prepare_decoder_input_ids_from_labels"):
            # T5Gemma begins with a token of its decoder's.
            label = torch.tensor([[pad_id]], device=device_of(model))
            start = int(model.prepare_decoder_input_ids_from_labels(label)[0, 0])
        self._start = pad_id if start is None else start

    def find_states(self, example: Encoded) -> Tensor:
        """Returns the encoder's output for an example. Raises StatesError if the encoder is trained.  # (1, L, D)."""
        assert self._frozen is not None
        if self._frozen.trains(self._model.get_encoder()):
            raise StatesError("the encoder trains")
        with torch.inference_mode():
            return self.states(self._collator([example]))

    def states(self, batch: Batch) -> Tensor:
        """Returns the encoder's output.  # (B, L, D)."""
        encoder = self._model.get_encoder()
        states: Tensor = encoder(batch.input_ids, attention_mask=batch.mask).last_hidden_state
        return states

    def _width(self, text: Encoded) -> int:
        return len(text.candidate_ids[0])

    def _hidden(self, batch: Batch) -> Tensor:
        """Returns the logits that predict each token.  # (B · C · T, V)."""
        with self._given(replace(batch, places=None)):  # kept states replace the encoder instead
            return self._forward(batch).flatten(0, 1)

    def _forward(self, batch: Any) -> Tensor:
        """Returns the logits that predict each token.  # (B · C, T, V)."""
        from transformers.modeling_outputs import MoEModelOutput

        candidates, width = batch.token_ids.shape[1:]
        kept = None if batch.places is None else self._collator.kept
        states = self.states(batch) if kept is None else kept.of(batch.places)
        begun = F.pad(batch.token_ids[..., :-1], (1, 0), value=self._start).flatten(0, 1)
        states, mask = (t.repeat_interleave(candidates, 0) for t in (states, batch.mask))

        def computed(rows: Tensor | slice, n: int) -> Tensor:
            logits: Tensor = self._model(
                encoder_outputs=MoEModelOutput(states[rows]),
                attention_mask=mask[rows],
                decoder_input_ids=begun[rows, :n],
                use_cache=False,
            ).logits
            return logits

        lengths = (~batch.absent).sum(-1).flatten().clamp(min=1)
        return by_length(computed, lengths, width) if self.apart else computed(slice(None), width)


class PairCollator:
    """Makes batches for an encoder-decoder model."""

    def __init__(self, model: Any, pad_id: int) -> None:
        self._device, self._pad = device_of(model), pad_id
        self._vocabulary = model.config.vocab_size
        self.kept: KeptStates | None = None

    def __call__(self, examples: Sequence[Encoded], groups: object = None) -> Batch:
        """Builds the batch; `groups` is not used."""
        ids = [torch.tensor(e.prompt_ids, device="cpu") for e in examples]
        prompts = pad_sequence(ids, True, self._pad)
        lengths = torch.tensor([[len(e.prompt_ids)] for e in examples], device="cpu")
        mask = (torch.arange(prompts.shape[1], device="cpu") < lengths).long()
        own = {name: torch.from_numpy(a) for name, a in candidates(examples, self._pad).items()}
        reads = torch.arange(own["token_ids"].numel(), device="cpu")
        own |= {"reads": reads, "token_reads": reads.view_as(own["token_ids"])}
        tensors: dict[str, Any] = {"input_ids": prompts, "mask": mask, **own}
        firsts = [self.kept.first(e) for e in examples] if self.kept is not None else [None]
        if None not in firsts:
            places = torch.arange(prompts.shape[1], device="cpu")
            places = places + torch.tensor(firsts, device="cpu")[:, None]
            tensors["places"] = places * mask
        on_device = {name: t.to(self._device) for name, t in tensors.items()}
        return Batch(**on_device)

    def check(self, examples: Sequence[Encoded]) -> None:
        """Raises ModelError if a token is not in the model's vocabulary."""
        check_vocabulary(examples, self._pad, self._vocabulary)

    def rows(self, examples: Sequence[Encoded]) -> list[list[int]]:
        """Returns which examples share a row: none."""
        return [[i] for i in range(len(examples))]

    def cost(self, example: Encoded) -> int:
        """Returns the tokens of an example in a forward pass."""
        return example.length
