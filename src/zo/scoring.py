"""Candidates -> scores of a decoder model; the loss and the predictions come from here.

A candidate's score is the mean log-probability of its tokens behind the prompt. Each prompt is
computed once, its candidates follow it in the same row and do not see each other, and the output
embedding is applied only where a candidate's token is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zo.tasks.prompts import Encoded


@dataclass(frozen=True)
class Batch:
    """Examples as tensors on the model's device. B rows of L tokens, C candidates of <= T tokens.

    Attributes:
        input_ids: prompt, then every candidate without its last token, then padding. # (B, L)
        mask: additive attention mask, or None: plain causal attention.       # (B, 1, L, L) | None
        position_ids: each candidate continues its prompt's, or None: 0..L-1. # (B, L) | None
        reads: places of `input_ids`, flattened, where a token is predicted.  # (R,)
        token_reads: index into `reads` of the place that predicts a token.   # (B, C, T)
        token_ids: the candidates' tokens.                                    # (B, C, T)
        absent: True where a candidate has fewer than T tokens.               # (B, C, T)
        labels: index of the true candidate.                                  # (B,)
    """

    input_ids: Tensor
    mask: Tensor | None
    position_ids: Tensor | None
    reads: Tensor
    token_reads: Tensor
    token_ids: Tensor
    absent: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Evaluation:
    """Scores of a split: mean loss in nats, accuracy in [0, 1], one prediction per example."""

    loss: float
    accuracy: float
    predictions: list[int]


@dataclass(frozen=True)
class _Row:
    """One example laid out: its prompt, then each candidate without its last token.

    Attributes:
        ids: the row's tokens.
        segments: 0 in the prompt, c + 1 in candidate c.
        positions: as if each candidate stood right behind the prompt.
        read_columns: columns where a token is predicted: the prompt's last and the candidates'.
        token_columns: per candidate and token, the column that predicts it.
    """

    ids: list[int]
    segments: list[int]
    positions: list[int]
    read_columns: list[int]
    token_columns: list[list[int]]


def _lay_out(example: Encoded) -> _Row:
    n = len(example.prompt_ids)
    ids, segments, positions = list(example.prompt_ids), [0] * n, list(range(n))
    token_columns = []
    for c, candidate in enumerate(example.candidate_ids):
        begin, inner = len(ids), len(candidate) - 1
        ids += candidate[:-1]
        segments += [c + 1] * inner
        positions += range(n, n + inner)
        token_columns.append([n - 1, *range(begin, begin + inner)])
    return _Row(ids, segments, positions, list(range(n - 1, len(ids))), token_columns)


def _padded(rows: Sequence[list[int]], width: int, value: int) -> list[list[int]]:
    return [row + [value] * (width - len(row)) for row in rows]


class CandidateScorer:
    """Scores, loss and predictions of one model; the model's weights may change between calls.

    Args:
        model: decoder with an output embedding, as `zo.models.load` returns it.
        pad_id: token that fills short rows; no score depends on it.
        loss_dtype: ``model`` or ``float32``: of log-softmax, cross entropy and the means.

    Raises:
        ValueError: another `loss_dtype`.
    """

    def __init__(self, model: Any, pad_id: int, loss_dtype: str = "float32") -> None:
        if loss_dtype not in ("model", "float32"):
            raise ValueError(f"precision.loss: {loss_dtype!r} is neither 'model' nor 'float32'")
        self._base = model.base_model
        self._head = model.get_output_embeddings()
        self._pad_id = pad_id
        parameter = next(model.parameters())
        self._device, self._model_dtype = parameter.device, parameter.dtype
        self._loss_dtype = self._model_dtype if loss_dtype == "model" else torch.float32
        self._positions = getattr(model.config, "max_position_embeddings", None) or math.inf
        self._window = getattr(model.config, "sliding_window", None) or math.inf

    def collate(self, examples: Sequence[Encoded]) -> Batch:
        """Build the tensors that all forward passes of a step share.

        Raises:
            ValueError: no examples, unequal numbers of candidates, more tokens than the model
                has positions.
        """
        if not examples or len({len(e.candidate_ids) for e in examples}) != 1:
            raise ValueError("a batch needs examples, all with the same number of candidates")
        width = max(e.length for e in examples)
        longest = max(len(ids) for e in examples for ids in e.candidate_ids)
        packed = longest > 1
        self._check_span(examples, packed)
        rows = [_lay_out(e) for e in examples]
        reads: list[int] = []  # flattened over the rows
        token_reads, token_ids = [], []
        for b, (example, row) in enumerate(zip(examples, rows, strict=True)):
            places = {column: len(reads) + i for i, column in enumerate(row.read_columns)}
            reads += [b * width + column for column in row.read_columns]
            for ids, columns in zip(example.candidate_ids, row.token_columns, strict=True):
                short = longest - len(ids)
                token_reads.append([places[column] for column in columns] + [-1] * short)
                token_ids.append(ids + [0] * short)
        shape = (len(examples), -1, longest)
        where = self._tensor(token_reads).view(shape)
        segments = _padded([row.segments for row in rows], width, -1) if packed else []
        positions = _padded([row.positions for row in rows], width, 0) if packed else []
        return Batch(
            input_ids=self._tensor(_padded([row.ids for row in rows], width, self._pad_id)),
            mask=self._block_mask(self._tensor(segments)) if packed else None,
            position_ids=self._tensor(positions) if packed else None,
            reads=self._tensor(reads),
            token_reads=where.clamp_min(0),
            token_ids=self._tensor(token_ids).view(shape),
            absent=where < 0,
            labels=self._tensor([e.label for e in examples]),
        )

    @torch.inference_mode()
    def scores(self, batch: Batch) -> Tensor:
        """Mean log-probability per candidate, in nats, as computed: also nan.  # (B, C)."""
        return self._scores(batch)

    @torch.inference_mode()
    def loss(self, batch: Batch) -> float:
        """Cross entropy over the candidates' scores, mean over the batch, in nats."""
        return self._loss(batch).item()

    @torch.enable_grad()
    def differentiable_loss(self, batch: Batch) -> Tensor:
        """Return the same loss as `loss`, as a tensor that can be backpropagated.  # ()."""
        return self._loss(batch)

    def _loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self._scores(batch), batch.labels)

    def _scores(self, batch: Batch) -> Tensor:
        hidden = self._base(
            input_ids=batch.input_ids,
            attention_mask=batch.mask,
            position_ids=batch.position_ids,
            use_cache=False,
        ).last_hidden_state  # (B, L, D)
        logits = self._head(hidden.flatten(0, 1)[batch.reads])  # (R, V)
        log_probs = F.log_softmax(logits, dim=-1, dtype=self._loss_dtype)
        per_token = log_probs[batch.token_reads, batch.token_ids]  # (B, C, T)
        total = per_token.masked_fill(batch.absent, 0).sum(-1)
        return total / (~batch.absent).sum(-1)

    @torch.inference_mode()
    def evaluate(
        self,
        examples: Sequence[Encoded],
        max_tokens: int,
        progress: Callable[[int], None] | None = None,
    ) -> Evaluation:
        """Score a whole split, examples of similar length together.

        Args:
            examples: in any order; predictions come back in the same.
            max_tokens: padded tokens per forward pass, > 0; a longer example goes alone.
            progress: called with the number of examples that were just scored.

        Raises:
            ValueError: no examples.
        """
        if not examples:
            raise ValueError("there is nothing to evaluate: the split has no examples")
        losses = [0.0] * len(examples)
        predictions = [0] * len(examples)
        for indices in length_batches([e.length for e in examples], max_tokens):
            batch = self.collate([examples[i] for i in indices])
            scores = self.scores(batch)
            each = F.cross_entropy(scores, batch.labels, reduction="none")
            both = torch.stack([each.double(), scores.argmax(-1).double()]).tolist()
            for i, loss, prediction in zip(indices, *both, strict=True):
                losses[i], predictions[i] = loss, int(prediction)
            if progress is not None:
                progress(len(indices))
        right = sum(p == e.label for p, e in zip(predictions, examples, strict=True))
        return Evaluation(sum(losses) / len(examples), right / len(examples), predictions)

    def _tensor(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)

    def _block_mask(self, segments: Tensor) -> Tensor:
        """Everything sees its prompt and, of its own candidate, what stands before it."""
        query, key = segments[:, None, :, None], segments[:, None, None, :]  # (B, 1, L, L)
        length = segments.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=self._device).tril()
        hidden = ~(causal & ((key == 0) | (key == query)))
        mask = torch.zeros(hidden.shape, dtype=self._model_dtype, device=self._device)
        return mask.masked_fill_(hidden, torch.finfo(self._model_dtype).min)

    def _check_span(self, examples: Sequence[Encoded], packed: bool) -> None:
        span = max(
            len(e.prompt_ids) + max(len(ids) for ids in e.candidate_ids) - 1 for e in examples
        )
        # The block mask replaces the model's own, and with it a sliding window's edge.
        limit = min(self._positions, self._window) if packed else self._positions
        if span > limit:
            raise ValueError(
                f"task.max_length: {span} tokens, but the model sees {limit} at a time"
            )


def length_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group indices so that rows padded to their group's longest stay within a budget.

    Args:
        lengths: tokens per row.
        max_tokens: rows x longest row of a group; a row that is longer makes a group alone.

    Returns:
        Groups of indices, shortest rows first; every index once.
    """
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):  # stable: ties in order
        if groups and (len(groups[-1]) + 1) * lengths[i] <= max_tokens:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups
