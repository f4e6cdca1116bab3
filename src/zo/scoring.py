"""Candidates -> scores of a model; the loss and the predictions come from here.

A decoder's score of a candidate is the mean log-probability of its tokens behind the prompt. Each
prompt is computed once, its candidates follow it in the same row and do not see each other, and the
output embedding is applied only where a candidate's token is predicted. A masked model's score of a
label word is its logit at the mask; the head is applied only there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zo.models import head_of
from zo.tasks.config import TaskError
from zo.tasks.prompts import Encoded

SPREAD = 1.25
"""The longest row of an evaluation's batch is at most this many times as long as its shortest."""

WORTH = 0.85
"""A batch is split if at most this share of its padded tokens is left: a second pass costs time."""


@dataclass(frozen=True)
class Part:
    """Rows that go through the model together: P rows of L tokens.

    Attributes:
        input_ids: prompt, then every candidate without its last token, then padding. # (P, L)
        mask: decoders: additive attention mask, or None: plain causal attention;
            masked models: 1 at tokens, 0 at padding.                 # (P, 1, L, L) | None; (P, L)
        position_ids: each candidate continues its prompt's, or None: 0..L-1. # (P, L) | None
        reads: places of `input_ids`, flattened, where a token is predicted.  # (R_p,)
    """

    input_ids: Tensor
    mask: Tensor | None
    position_ids: Tensor | None
    reads: Tensor


@dataclass(frozen=True)
class Batch:
    """B examples as tensors on the model's device, C candidates of <= T tokens.

    Attributes:
        parts: the examples' rows, in any order; together they have R reads.
        token_reads: index into all parts' reads of the place that predicts a token. # (B, C, T)
        token_ids: the candidates' tokens.                                    # (B, C, T)
        absent: True where a candidate has fewer than T tokens.               # (B, C, T)
        labels: index of the true candidate.                                  # (B,)
    """

    parts: list[Part]
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
    if example.mask_at is not None:
        reads = [example.mask_at]
        return _Row(ids, segments, positions, reads, [reads] * len(example.candidate_ids))
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
        model: as `zo.models.load` returns it.
        pad_id: token that fills short rows; no score depends on it.
        loss_dtype: ``model`` or ``float32``: of log-softmax, cross entropy and the means.
        kind: ``decoder`` or ``masked``.
        objective: ``classification`` or ``lm``, see `zo.tasks.TaskConfig`.

    Raises:
        ValueError: another `loss_dtype`.
    """

    def __init__(
        self,
        model: Any,
        pad_id: int,
        loss_dtype: str = "float32",
        kind: str = "decoder",
        objective: str = "classification",
    ) -> None:
        if loss_dtype not in ("model", "float32"):
            raise ValueError(f"precision.loss: {loss_dtype!r} is neither 'model' nor 'float32'")
        self._base = model.base_model
        self._head = head_of(model, kind)
        self._masked = kind == "masked"
        self._objective = objective
        self._pad_id = pad_id
        parameter = next(model.parameters())
        self._device, self._model_dtype = parameter.device, parameter.dtype
        self._loss_dtype = self._model_dtype if loss_dtype == "model" else torch.float32
        self._positions = _positions(model)
        self._window = getattr(model.config, "sliding_window", None) or math.inf

    def collate(self, examples: Sequence[Encoded]) -> Batch:
        """Build the tensors that all forward passes of a step share.

        Raises:
            ValueError: no examples, unequal numbers of candidates, examples for the other kind of
                model, more tokens than the model has positions.
        """
        groups = [list(range(len(examples)))]
        if self._device.type == "cpu":  # a GPU's time goes to reading the weights: never twice
            groups = _split([e.length for e in examples])
        return self._collate(examples, groups)

    def _collate(self, examples: Sequence[Encoded], groups: list[list[int]]) -> Batch:
        """Build a batch whose parts are the groups of the examples' indices."""
        if not examples or len({len(e.candidate_ids) for e in examples}) != 1:
            raise ValueError("a batch needs examples, all with the same number of candidates")
        if any((e.mask_at is not None) != self._masked for e in examples):
            raise ValueError("masked models need examples with a mask, decoders without one")
        longest = max(len(ids) for e in examples for ids in e.candidate_ids)
        self.check(examples)
        rows = [_lay_out(e) for e in examples]
        firsts, n_reads = [0] * len(rows), 0  # index of each row's first read
        for b in (b for group in groups for b in group):
            firsts[b], n_reads = n_reads, n_reads + len(rows[b].read_columns)
        token_reads, token_ids = [], []
        for first, example, row in zip(firsts, examples, rows, strict=True):
            places = {column: first + i for i, column in enumerate(row.read_columns)}
            for ids, columns in zip(example.candidate_ids, row.token_columns, strict=True):
                short = longest - len(ids)
                token_reads.append([places[column] for column in columns] + [-1] * short)
                token_ids.append(ids + [0] * short)
        shape = (len(examples), -1, longest)
        where = self._tensor(token_reads).view(shape)
        return Batch(
            parts=[self._part([rows[b] for b in group], longest > 1) for group in groups],
            token_reads=where.clamp_min(0),
            token_ids=self._tensor(token_ids).view(shape),
            absent=where < 0,
            labels=self._tensor([e.label for e in examples]),
        )

    def _part(self, rows: Sequence[_Row], packed: bool) -> Part:
        width = max(len(row.ids) for row in rows)
        segments = _padded([row.segments for row in rows], width, -1)
        positions = _padded([row.positions for row in rows], width, 0) if packed else []
        return Part(
            input_ids=self._tensor(_padded([row.ids for row in rows], width, self._pad_id)),
            mask=self._attention(self._tensor(segments), packed),
            position_ids=self._tensor(positions) if packed else None,
            reads=self._tensor([p * width + c for p, r in enumerate(rows) for c in r.read_columns]),
        )

    @torch.inference_mode()
    def scores(self, batch: Batch) -> Tensor:
        """One per candidate, in nats, as computed: also nan.  # (B, C)."""
        return _means(self._values(batch), batch)

    @torch.inference_mode()
    def loss(self, batch: Batch) -> float:
        """The objective's loss, in nats.

        ``classification``: cross entropy over the candidates' scores, mean over the examples;
        ``lm``: negative log-likelihood of the true candidates, mean over their tokens.
        """
        return self._loss(batch).item()

    @torch.inference_mode()
    def branches(self, batch: Batch, n: int) -> list[float]:
        """The losses of n copies of the batch from one forward pass, copy after copy in the rows of every layer.

        Where the model's weights differ by rows, as under `zo.params.ParamSpace`'s factors, so do the losses.
        """
        parts = [self._hidden(self._copies(part, n)).unflatten(0, (n, -1)) for part in batch.parts]
        logits = self._head(torch.cat(parts, dim=1).flatten(0, 1)).unflatten(
            0, (n, -1)
        )  # (n, R, V)
        return torch.stack(
            [self._loss_of(self._read(each, batch), batch) for each in logits]
        ).tolist()

    @torch.enable_grad()
    def differentiable_loss(self, batch: Batch) -> Tensor:
        """Return the same loss as `loss`, as a tensor that can be backpropagated.  # ()."""
        return self._loss(batch)

    def _loss(self, batch: Batch) -> Tensor:
        return self._loss_of(self._values(batch), batch)

    def _loss_of(self, values: Tensor, batch: Batch) -> Tensor:
        if self._objective == "classification":
            return F.cross_entropy(_means(values, batch), batch.labels)
        rows = torch.arange(len(batch.labels), device=self._device)
        true = values[rows, batch.labels]  # (B, T)
        tokens = (~batch.absent[rows, batch.labels]).sum()
        return (-true.sum(dtype=torch.float32) / tokens).to(values.dtype)

    def _values(self, batch: Batch) -> Tensor:
        """Of each candidate's tokens the log-probability, or the logit at the mask.  # (B, C, T)."""
        logits = self._head(torch.cat([self._hidden(part) for part in batch.parts]))  # (R, V)
        return self._read(logits, batch)

    def _read(self, logits: Tensor, batch: Batch) -> Tensor:
        if self._masked:
            values = logits.to(self._loss_dtype)
        else:
            values = F.log_softmax(logits, dim=-1, dtype=self._loss_dtype)
        return values[batch.token_reads, batch.token_ids].masked_fill(batch.absent, 0)

    def _hidden(self, part: Part) -> Tensor:
        """The last hidden states where a token is predicted.  # (R_p, D)."""
        places = {} if self._masked else {"position_ids": part.position_ids, "use_cache": False}
        hidden = self._base(
            input_ids=part.input_ids, attention_mask=part.mask, **places
        ).last_hidden_state  # (P, L, D)
        return hidden.flatten(0, 1)[part.reads]

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
        losses, weights = [0.0] * len(examples), [1.0] * len(examples)
        predictions = [0] * len(examples)
        for indices in length_batches([e.length for e in examples], max_tokens):
            batch = self._collate([examples[i] for i in indices], [list(range(len(indices)))])
            scores = self.scores(batch)
            each, parts = self._losses(scores, batch)
            columns = torch.stack([each.double(), parts.double(), scores.argmax(-1).double()])
            for i, loss, part, prediction in zip(indices, *columns.tolist(), strict=True):
                losses[i], weights[i], predictions[i] = loss, part, int(prediction)
            if progress is not None:
                progress(len(indices))
        right = sum(p == e.label for p, e in zip(predictions, examples, strict=True))
        loss = sum(x * w for x, w in zip(losses, weights, strict=True)) / sum(weights)
        return Evaluation(loss, right / len(examples), predictions)

    def _losses(self, scores: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Every example's loss and its part of the mean: for ``lm`` its tokens.  # (B,), (B,)."""
        if self._objective == "classification":
            each = F.cross_entropy(scores, batch.labels, reduction="none")
            return each, torch.ones_like(each)
        true = batch.labels[:, None]
        tokens = (~batch.absent).sum(-1)  # (B, C)
        return -scores.gather(1, true)[:, 0], tokens.gather(1, true)[:, 0]

    def _copies(self, part: Part, n: int) -> Part:
        """The part n times along its rows, every row with positions of its own."""
        rows, width = part.input_ids.shape
        step = rows * width * torch.arange(n, device=self._device)[:, None]
        positions = part.position_ids
        if positions is None and not self._masked:
            positions = torch.arange(width, device=self._device).expand(rows, -1)
        return Part(
            input_ids=part.input_ids.repeat(n, 1),
            mask=None if part.mask is None else part.mask.repeat(n, *[1] * (part.mask.dim() - 1)),
            position_ids=None if positions is None else positions.repeat(n, 1),
            reads=(part.reads + step).flatten(),
        )

    def _tensor(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)

    def _attention(self, segments: Tensor, packed: bool) -> Tensor | None:
        if self._masked:
            return (segments >= 0).long()
        return self._block_mask(segments) if packed else None

    def _block_mask(self, segments: Tensor) -> Tensor:
        """Everything sees its prompt and, of its own candidate, what stands before it."""
        query, key = segments[:, None, :, None], segments[:, None, None, :]  # (B, 1, L, L)
        length = segments.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=self._device).tril()
        hidden = ~(causal & ((key == 0) | (key == query)))
        mask = torch.zeros(hidden.shape, dtype=self._model_dtype, device=self._device)
        return mask.masked_fill_(hidden, torch.finfo(self._model_dtype).min)

    def check(self, examples: Sequence[Encoded]) -> None:
        """Make sure that the model can see the longest of the examples whole.

        Raises:
            TaskError: it cannot; names ``task.max_length``.
        """
        lengths = [max(map(len, e.candidate_ids)) for e in examples]
        span = max(len(e.prompt_ids) + n - 1 for e, n in zip(examples, lengths, strict=True))
        # The block mask replaces the model's own, and with it a sliding window's edge.
        limit = min(self._positions, self._window) if max(lengths) > 1 else self._positions
        if span > limit:
            raise TaskError(f"task.max_length: {span} tokens, but the model sees {limit} at a time")


def _means(values: Tensor, batch: Batch) -> Tensor:
    return values.sum(-1) / (~batch.absent).sum(-1)  # (B, C)


def _positions(model: Any) -> float:
    """Tokens that the model has positions for; RoBERTa keeps some in front of the first token."""
    found = getattr(model.config, "max_position_embeddings", None) or math.inf
    embeddings = getattr(model.base_model, "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    return found if padding is None else found - padding - 1


def _split(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of the short rows and of the long ones, or of all together if that saves little."""
    n = len(lengths)
    order = sorted(range(n), key=lengths.__getitem__)
    padded = [k * lengths[order[k - 1]] + (n - k) * lengths[order[-1]] for k in range(n)]
    short = min(range(n), key=padded.__getitem__, default=0)
    if not short or padded[short] > WORTH * padded[0]:
        return [list(range(n))]
    return [order[:short], order[short:]]


def length_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group indices so that rows padded to their group's longest stay within a budget.

    A group's rows are of similar length, too: a budget with room for a whole split would else make
    every row as long as the longest of all.

    Args:
        lengths: tokens per row.
        max_tokens: rows x longest row of a group; a row that is longer makes a group alone.

    Returns:
        Groups of indices, shortest rows first; every index once.
    """
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):  # stable: ties in order
        group = groups[-1] if groups else []
        fits = (len(group) + 1) * lengths[i] <= max_tokens
        if group and fits and lengths[i] <= SPREAD * lengths[group[0]]:
            group.append(i)
        else:
            groups.append([i])
    return groups
