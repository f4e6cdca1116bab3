"""Tensors of one forward pass: examples laid out in rows and copied to the device at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zo.lm.config import ModelError
from zo.lm.scoring.heads import first_position, packs
from zo.lm.scoring.packing import Columns, Layout, Row, one_each, pack, shared, shared_beginning
from zo.tasks.config import TaskError
from zo.tasks.prompts import Encoded
from zo.weights.offloaded import device_of

if TYPE_CHECKING:
    from zo.lm.scoring.states import KeptStates

ALIGNED = 16
"""A GPU's attention kernels read a mask in place if rows are a multiple of this many tokens."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """B examples in P rows of L tokens on the model's device, C candidates of <= T tokens; examples may share a row."""

    input_ids: Tensor  # (P, L)  The rows' tokens, then padding
    # (P, 1, L, L)  Additive, in the model's dtype, if texts share rows. Else None for decoders, whose tokens see all
    # before them, and for other models 1 at tokens, 0 at padding, (P, L)
    mask: Tensor | None = None
    position_ids: Tensor | None = None  # (P, L)  Of each token in its text; None: 0..L-1
    token_ids: Tensor  # (B, C, T)  The candidates' tokens
    absent: (
        Tensor  # (B, C, T)  Where a candidate has fewer than T tokens, or one that is not trained
    )
    labels: Tensor  # (B,)  Index of the true candidate
    reads: Tensor  # (R,)  Positions in flattened `input_ids` that predict a token
    token_reads: Tensor  # (B, C, T)  Index into `reads` for each candidate's token
    # (P, L)  Row of each token in `zo.lm.scoring.states.KeptStates`, 0 for padding; None if these are not kept
    places: Tensor | None = None
    # Of `zo.lm.scoring.states.FrozenBlocks`, once a forward pass has computed them; None if every pass computes them
    outputs: dict[str, Any] | None = None
    reference: Tensor | None = (
        None  # (B,), float64  See `zo.tasks.Encoded`; None of examples without
    )

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors that are not None, by name."""
        return {name: t for name, t in vars(self).items() if isinstance(t, Tensor)}

    def repeated(self, n: int) -> Batch:
        """Returns the batch n times: copy after copy in the rows, the reads and the examples."""
        tensors = {name: t.repeat(n, *[1] * (t.dim() - 1)) for name, t in self.tensors().items()}
        copies, which = (
            replace(self, **tensors, outputs=None),
            torch.arange(n, device=self.reads.device),
        )
        copies.reads.add_(which.repeat_interleave(len(self.reads)) * self.input_ids.numel())
        shift = which.repeat_interleave(len(self.labels)) * len(self.reads)
        copies.token_reads.add_(shift[:, None, None])
        return copies


class Collator:
    """Makes batches for one model.

    Texts share rows if the model keeps them apart (`zo.lm.scoring.heads.packs`) and none is longer than its attention
    window. Otherwise every candidate has its own row, except for a candidate that is a prefix of another.

    Args:
        model: as `zo.lm.load.load` returns it.
        pad_id: token that fills short rows.
        kind: ``decoder`` or ``masked``.
        multiple: rows are padded to a multiple of so many tokens, > 0; None: 16 on a GPU, else 1.
    """

    def __init__(self, model: Any, pad_id: int, kind: str, multiple: int | None = None) -> None:
        self._pad_id, self._masked = pad_id, kind == "masked"
        parameter = next(model.parameters())
        self._device, self._dtype = device_of(model), parameter.dtype
        self._first = first_position(model)
        config = model.config.get_text_config()  # of a model that reads pictures, too
        most = getattr(config, "max_position_embeddings", None) or math.inf
        self._positions = most - self._first
        self._window = getattr(config, "sliding_window", None) or math.inf
        self._vocabulary = model.get_input_embeddings().weight.shape[0]
        self._packs, self._hidden = packs(model, kind), config.hidden_size
        aligned = ALIGNED if self._device.type == "cuda" else 1
        self._multiple = aligned if multiple is None else multiple
        self.shares = True  # whether texts may share rows, if the model keeps them apart
        self.kept: KeptStates | None = None  # to which a batch's `places` refer

    def __call__(self, examples: Sequence[Encoded], groups: list[list[int]] | None = None) -> Batch:
        """Builds the batch without waiting for a GPU; `groups` are the result of `rows`, computed here if None."""
        self.check(examples)
        packed = self._may_pack(examples)
        groups = self.rows(examples) if groups is None else groups
        layout = shared(examples, groups, self._masked) if packed else self._alone(examples)
        rows = layout.rows
        longest = max(len(row.ids) for row in rows)
        width = -(-longest // self._multiple) * self._multiple
        texts = self._texts(rows, width, packed)
        if self.kept is not None:
            texts |= layout.places(self.kept, examples, width)
        arrays = _answers(examples, layout.columns, width) | texts
        tensors: dict[str, Any] = self._upload(arrays)
        if packed:
            sees, least = tensors["mask"], torch.finfo(self._dtype).min
            mask = torch.zeros(sees.shape, dtype=self._dtype, device=self._device)
            tensors["mask"] = mask.masked_fill_(~sees, least)[:, None]  # (P, 1, L, L)
        return Batch(**tensors)

    def check(self, examples: Sequence[Encoded]) -> None:
        """Checks that the longest example fits the model's window.

        Raises:
            TaskError: it does not; names ``task.max_length``.
            ModelError: a token is not in the model's vocabulary.
        """
        check_vocabulary(examples, self._pad_id, self._vocabulary)
        if (longest := max(map(span, examples))) > self._positions:
            raise TaskError(
                f"task.max_length: {longest} tokens, but the model sees {self._positions} at a time"
            )

    def cost(self, example: Encoded) -> int:
        """Returns the tokens of an example in a forward pass, padding included."""
        if self._may_pack([example]):
            return example.length
        return len(self._alone([example]).rows) * span(example)

    def rows(self, examples: Sequence[Encoded]) -> list[list[int]]:
        """Returns which examples share a row, as indices."""
        if not self._may_pack(examples):
            return [[b] for b in range(len(examples))]
        begin = 0 if self._masked else shared_beginning([e.prompt_ids for e in examples])
        return pack([e.length for e in examples], begin, self._hidden)

    def _may_pack(self, examples: Sequence[Encoded]) -> bool:
        return self.shares and self._packs and max(map(span, examples)) <= self._window

    def _alone(self, examples: Sequence[Encoded]) -> Layout:
        return one_each(examples, self._masked, self.shares)

    def _texts(
        self, rows: Sequence[Row], width: int, packed: bool
    ) -> dict[str, NDArray[np.int64] | NDArray[np.bool_]]:
        """Returns the rows' tokens and, if the model needs them, positions and mask."""
        shape = (len(rows), width)
        ids, positions = np.full(shape, self._pad_id), np.full(shape, self._first)
        for p, row in enumerate(rows):
            ids[p, : len(row.ids)] = row.ids
            positions[p, : len(row.ids)] += row.positions
        if packed:
            sees = np.broadcast_to(np.eye(width, dtype=np.bool_), (*shape, width)).copy()
            for p, row in enumerate(rows):
                sees[p, : len(row.ids), : len(row.ids)] = row.sees()
            return {"input_ids": ids, "position_ids": positions, "mask": sees}
        if not self._masked:
            return {"input_ids": ids}
        lengths = np.array([[len(row.ids)] for row in rows])
        return {"input_ids": ids, "mask": (np.arange(width) < lengths).astype(np.int64)}

    def _upload(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
        """Returns the arrays on the device, by one copy; 8 bytes before 1, for alignment."""
        order = sorted(arrays, key=lambda name: -arrays[name].itemsize)
        pieces = [arrays[name].reshape(-1).view(np.uint8) for name in order]
        flat = torch.from_numpy(np.concatenate(pieces))
        if self._device.type == "cuda":
            flat = flat.pin_memory()
        flat = flat.to(self._device, non_blocking=True)
        tensors, begin = {}, 0
        for name in order:
            array = arrays[name]
            dtype = getattr(torch, array.dtype.name)
            piece = flat[begin : begin + array.nbytes]
            tensors[name] = piece.view(dtype).view(array.shape)
            begin += array.nbytes
        return tensors


def span(example: Encoded) -> int:
    """Returns the length of an example's longest text: the prompt and a candidate without its last token."""
    return len(example.prompt_ids) + max(map(len, example.candidate_ids)) - 1


def _answers(examples: Sequence[Encoded], columns: Columns, width: int) -> dict[str, NDArray[Any]]:
    """Returns the candidates' tokens, and the positions that predict them, each once."""
    reads: dict[int, int] = {}
    arrays = candidates(examples)
    token_reads = np.zeros_like(arrays["token_ids"])
    for b in range(len(examples)):
        for c, (row, own) in enumerate(columns[b]):
            for t in np.flatnonzero(~arrays["absent"][b, c, : len(own)]):
                token_reads[b, c, t] = reads.setdefault(row * width + own[t], len(reads))
    return {**arrays, "reads": np.array(list(reads)), "token_reads": token_reads}


def candidates(examples: Sequence[Encoded], pad: int = 0) -> dict[str, NDArray[Any]]:
    """Returns `token_ids`, `absent`, `labels` and `reference` of a batch, see `Batch`."""
    longest = max(len(ids) for e in examples for ids in e.candidate_ids)
    shape = (len(examples), max(len(e.candidate_ids) for e in examples), longest)
    token_ids, absent = np.full(shape, pad), np.ones(shape, np.bool_)
    for b, example in enumerate(examples):
        for c, ids in enumerate(example.candidate_ids):
            token_ids[b, c, : len(ids)] = ids
            absent[b, c, : len(ids)] = np.logical_not(example.trained) if example.trained else False
    labels = np.array([e.label for e in examples])
    references = [e.reference for e in examples if e.reference is not None]
    more = {"reference": np.array(references)} if references else {}
    return {"token_ids": token_ids, "absent": absent, "labels": labels, **more}


def check_vocabulary(examples: Sequence[Encoded], pad_id: int, size: int) -> None:
    """Raises ModelError if a token is not in the model's vocabulary."""
    top = max(max(map(max, (e.prompt_ids, *e.candidate_ids))) for e in examples)
    if (top := max(top, pad_id)) >= size:
        raise ModelError(
            f"model.path: the tokenizer has a token {top}, but the model's vocab_size is {size};"
            " they are of different models"
        )
