"""Scores of candidates, and from them the loss and the predictions.

A decoder's score of a candidate is the mean log-probability of its tokens after the prompt. Each text is computed once,
with little padding (`zo.lm.scoring.packing`). The output embedding is applied only where a candidate's token is
predicted. If only differences of scores matter, it is computed only for the candidates' tokens. A masked model's score
of a label word is its logit at the mask; the head is applied only there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from zo.distributed.processes import Processes
from zo.lm.config import ModelError, StatesError
from zo.lm.scoring.collate import Batch, Collator, span
from zo.lm.scoring.heads import by_length, differs, head_of, tied_rows
from zo.tasks.measures import NAMED, Measure
from zo.tasks.prompts import Encoded
from zo.weights.offloaded import device_of

if TYPE_CHECKING:
    from zo.lm.scoring.states import FrozenBlocks, KeptStates

MOST_LOSS = 700  # Most nats whose exponential is finite

STATES = 16
"""Numbers that a forward pass holds at once for each token, as a multiple of the hidden size."""

PROMPTS = 100  # Examples among which texts of different length are searched
TEXTS = 4  # Texts that are computed together and alone, besides the shortest one

SPREAD = 1.25
"""The longest row of an evaluation's batch is at most this many times as long as its shortest."""


Plan: TypeAlias = list[tuple[list[int], list[list[int]]]]
"""Batches of a split: indices of its examples, and which of these share a row."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of a split."""

    loss: float  # Mean of what is minimised, in nats
    value: float  # Of the reported measure
    predictions: list[int]  # One per example; empty if no candidates are compared
    measure: Measure = NAMED["accuracy"]  # The reported measure
    # Of the predictions: the softmax over an example's candidates
    probabilities: list[float] = field(default_factory=list)
    more: dict[str, float] = field(default_factory=dict)  # Name -> another number that is logged
    # Of each example, in nats; empty if candidates are compared
    losses: list[float] = field(default_factory=list)


class CandidateScorer:
    """Scores, loss and predictions of one model; the model's weights may change between calls.

    Args:
        model: as `zo.lm.load.load` returns it.
        pad_id: token that fills short rows; no score depends on it.
        loss_dtype: ``model`` or ``float32``: of log-softmax, cross entropy and the means.
        kind: see `zo.lm.config.ModelConfig`.
        objective: ``classification`` or ``lm``, see `zo.tasks.TaskConfig`; ``completion``: as ``lm``, of examples with
            one candidate, whose measure is perplexity.
        graphs: `loss` replays a CUDA graph for a batch of the same shape, see `zo.lm.scoring.graphs`;
            the weights must keep their addresses, and hooks are not called again.
        processes: processes that divide evaluations; each returns the same.

    Raises:
        ModelError: `graphs` without a GPU.
    """

    differentiable = True  # Whether the loss has a gradient
    writes = False  # Whether the model writes texts, which are rated

    def __init__(
        self,
        model: Any,
        pad_id: int,
        loss_dtype: str = "float32",
        kind: str = "decoder",
        objective: str = "classification",
        graphs: bool = False,
        processes: Processes | None = None,
    ) -> None:
        self._processes = processes or Processes()
        self._masked, self._objective = kind == "masked", objective
        parameter = next(model.parameters())
        self._device = device_of(model)
        self._dtype, self._config = parameter.dtype, model.config
        self._loss_dtype = parameter.dtype if loss_dtype == "model" else torch.float32
        if graphs and self._device.type != "cuda":
            raise ModelError(f"precision.graphs: needs a GPU, the model is on {self._device}")
        self._recorded, multiple, self._graphs = self._loss, None, graphs
        if graphs:
            from zo.lm.scoring.graphs import STEP, Graphs

            self._recorded, multiple = Graphs(self._loss), STEP
        self._prepare(model, pad_id, kind, multiple)
        self._plans: list[tuple[Sequence[Encoded], int, Plan]] = []
        self.once = False  # whether the forward passes of a mini-batch compute frozen blocks once
        # Whether texts are computed in groups of equal length; None before two lengths were seen
        self.apart: bool | None = None
        self._name = type(model).__name__
        self._frozen: FrozenBlocks | None = None
        # Of what a block returns, all but hidden states; nobody reads it.
        self._beside: list[Any] = []
        self._structure: Any = None

    def _prepare(self, model: Any, pad_id: int, kind: str, multiple: int | None) -> None:
        """Reads what scoring needs from the model."""
        self._base, self._head = model.base_model, head_of(model, kind)
        exact = torch.finfo(self._loss_dtype).bits >= 32  # a half precision's rounding is kept
        self._rows = tied_rows(model) if exact and not self._masked else None
        self._collator = Collator(model, pad_id, kind, multiple)

    def collate(self, examples: Sequence[Encoded]) -> Batch:
        """Returns the tensors that all forward passes of a step share; see `zo.lm.scoring.collate.Collator`."""
        batch = self._batch(examples)
        return replace(batch, outputs={}) if self.once and batch.places is None else batch

    def _batch(self, examples: Sequence[Encoded], rows: list[list[int]] | None = None) -> Batch:
        """Returns a batch; computes the kept hidden states of its examples that are missing."""
        if (kept := self._collator.kept) is not None:
            for example in kept.missing(examples):
                alone = self._collator([example])
                assert alone.places is not None
                kept.put(example, self.states(alone), alone.places)
        return self._collator(examples, rows)

    def keep(self, kept: KeptStates | None) -> None:
        """Keeps the hidden states of `states` in `kept` from now on, and reuses them."""
        self._collator.kept = kept

    @property
    def kept(self) -> KeptStates | None:
        """The kept hidden states, or None."""
        return self._collator.kept

    @torch.inference_mode()
    def find_frozen(self, frozen: FrozenBlocks, example: Encoded) -> None:
        """Finds the frozen blocks whose outputs `once` and `states` reuse. Raises StatesError if there are none."""
        if self.apart:
            raise StatesError("each pass has texts of one length")
        batch = self._collator([example])
        frozen.find(lambda: self._forward(batch))
        self._frozen = frozen

    @torch.inference_mode()
    def find_states(self, example: Encoded) -> Tensor:
        """Finds what `states` computes; returns an example's. Raises StatesError if it cannot.  # (P, L, D)."""
        assert self._frozen is not None
        if (count := len(self._frozen.called)) != 1:
            raise StatesError(f"the loss calls {count} lists of blocks")
        batch = self._collator([example])
        (path,), (output,) = zip(*self._outputs(batch).items(), strict=True)
        leaves, structure = tree_flatten(output)
        if not isinstance(leaves[0], Tensor) or leaves[0].shape[:2] != batch.input_ids.shape:
            raise StatesError(f"a block of {path} does not return hidden states first")
        self._beside, self._structure = leaves[1:], structure
        return leaves[0]

    @torch.inference_mode()
    def states(self, batch: Batch) -> Tensor:
        """Returns the input of the first trained block that `find_states` found.  # (P, L, D)."""
        states: Tensor = tree_leaves(self._outputs(batch))[0]
        return states

    def _outputs(self, batch: Batch) -> dict[str, Any]:
        """Returns the outputs of frozen blocks for a batch, by the path of their list."""
        assert self._frozen is not None
        return self._frozen.outputs_of(lambda: self._forward(batch))

    def _given(self, batch: Batch) -> AbstractContextManager[None]:
        """In the body frozen blocks return the kept outputs of a batch, if there are any."""
        if batch.outputs is not None:
            assert self._frozen is not None
            return self._frozen.once(batch.outputs)
        if batch.places is None:
            return nullcontext()
        assert self._frozen is not None
        assert self._collator.kept is not None
        states = self._collator.kept.of(batch.places)
        output = tree_unflatten([states, *self._beside], self._structure)
        return self._frozen.returning(dict.fromkeys(self._frozen.lists, output))

    def check(self, examples: Sequence[Encoded]) -> None:
        """Checks that the model can score the examples, and whether padding changes their scores.

        Raises:
            TaskError: As `zo.lm.scoring.collate.Collator.check`.
            ModelError: As that, or if scores differ from pass to pass.
        """
        self._collator.check(examples)
        if self.apart is None and not self._masked:  # of which `check_padding` was sure
            self._find_apart(examples[:PROMPTS])

    @property
    def notes(self) -> list[str]:
        """Sentences for the log about the scoring of texts."""
        said = f"padding changes the scores of {self._name}: each pass has texts of one length"
        return [said + "; precision.graphs records none" * self._graphs] if self.apart else []

    @torch.inference_mode()
    def _find_apart(self, examples: Sequence[Encoded]) -> None:
        """Compares results of texts of different length, computed together and alone; sets `apart`."""
        every = [replace(e, candidate_ids=[c], label=0) for e in examples for c in e.candidate_ids]
        every.sort(key=self._width)
        if self._width(every[0]) == self._width(every[-1]):
            return
        texts = [every[round(i * (len(every) - 1) / TEXTS)] for i in range(TEXTS + 1)]
        alone = torch.cat([self._predicting([text]) for text in texts])
        self.apart = differs(self._predicting(texts), alone, self._dtype)
        if self.apart:
            self._collator.shares, self._recorded = False, self._loss
            if differs(self._predicting(texts), alone, self._dtype):
                raise ModelError(
                    f"model.path: {self._name} computes other scores of the same text at each pass; take another model"
                )

    def _width(self, text: Encoded) -> int:
        """Returns the length to which a text pads others in its batch."""
        return span(text)

    def _predicting(self, texts: Sequence[Encoded]) -> Tensor:
        """Returns the states that predict the tokens of texts with one candidate each, concatenated.  # (n, D)."""
        batch = self._collator(texts)
        return self._hidden(batch)[batch.token_reads[~batch.absent]]

    @torch.inference_mode()
    def scores(self, batch: Batch) -> Tensor:
        """Returns one score per candidate, in nats; may be nan.  # (B, C)."""
        return _means(self._values(batch), batch)

    @torch.inference_mode()
    def loss(self, batch: Batch) -> float:
        """Returns the objective's loss, in nats.

        ``classification``: cross entropy over the candidates' scores, mean over the examples;
        ``lm``: negative log-likelihood of the true candidates, mean over their tokens.
        """
        return self._recorded(batch).item()

    def share(self, examples: Sequence[Encoded]) -> int:
        """Returns the number of examples, or for ``lm`` tokens, in the mean of `loss`."""
        if self._objective == "classification":
            return len(examples)
        return sum(example.tokens for example in examples)

    @torch.inference_mode()
    def branches(self, batch: Batch, n: int) -> list[float]:
        """Returns the losses of n copies of the batch from one forward pass, copy after copy in all rows.

        Where the model's weights differ by rows, so do the losses.
        """
        return torch.stack(self._of_copies(batch.repeated(n), batch, n)).tolist()

    def squares(self) -> list[float]:
        """Returns none, since no texts are rated."""
        return []

    def branch_bytes(self, batch: Batch) -> int:
        """Returns about the most bytes that a copy of the batch takes in a forward pass."""
        hidden: int = self._config.get_text_config().hidden_size
        return STATES * hidden * self._dtype.itemsize * batch.input_ids.numel()

    @torch.enable_grad()
    def differentiable_loss(self, batch: Batch) -> Tensor:
        """Returns the same loss as `loss`, as a tensor that can be backpropagated.  # ()."""
        return self._loss(batch)

    def _loss(self, batch: Batch) -> Tensor:
        return self._of_copies(batch, batch, 1)[0]

    def _of_copies(self, copies: Batch, batch: Batch, n: int) -> list[Tensor]:
        """Returns the losses of n copies of a batch.  # ()."""
        if self._objective == "classification":
            scores = self._comparable(copies).chunk(n)
            return [F.cross_entropy(of_one, batch.labels) for of_one in scores]
        return [self._likelihood(values, batch) for values in self._values(copies).chunk(n)]

    def _likelihood(self, values: Tensor, batch: Batch) -> Tensor:
        """Returns the ``lm`` objective's loss from the tokens' log-probabilities, (B, C, T).  # ()."""
        rows = torch.arange(len(batch.labels), device=self._device)
        true = values[rows, batch.labels]  # (B, T)
        tokens = (~batch.absent[rows, batch.labels]).sum()
        return (-true.sum(dtype=torch.float32) / tokens).to(values.dtype)

    def _comparable(self, batch: Batch) -> Tensor:
        """Returns scores up to a constant per example.  # (B, C).

        Neither their order nor the cross entropy over them depends on that constant. For candidates of one token it is
        the normaliser over the vocabulary, so their logits are enough.
        """
        if self._rows is None or batch.token_ids.shape[-1] > 1:
            return _means(self._values(batch), batch)
        hidden = self._hidden(batch)[batch.token_reads[:, 0, 0]]  # (B, D)
        rows = self._rows(batch.token_ids[:, :, 0])  # (B, C, D)
        scores = (rows @ hidden[:, :, None])[:, :, 0].to(self._loss_dtype)
        return scores.masked_fill(batch.absent[:, :, 0], -torch.inf)

    def _values(self, batch: Batch) -> Tensor:
        """Returns each token's log-probability, or its logit at the mask.  # (B, C, T)."""
        logits = self._head(self._hidden(batch))  # (R, V)
        if self._masked:
            values = logits.to(self._loss_dtype)
        else:
            values = F.log_softmax(logits, dim=-1, dtype=self._loss_dtype)
        return values[batch.token_reads, batch.token_ids].masked_fill(batch.absent, 0)

    def _hidden(self, batch: Batch) -> Tensor:
        """Returns the last hidden states where a token is predicted.  # (R, D)."""
        with self._given(batch):
            hidden = self._forward(batch)
        return hidden.flatten(0, 1).index_select(0, batch.reads)

    def _forward(self, batch: Batch) -> Tensor:
        """Returns the last hidden states.  # (P, L, D)."""
        options: dict[str, Any] = {} if self._masked else {"use_cache": False}
        if batch.mask is not None:
            options["attention_mask"] = batch.mask
        if batch.position_ids is not None:
            options["position_ids"] = batch.position_ids
        if not self.apart:
            hidden: Tensor = self._base(input_ids=batch.input_ids, **options).last_hidden_state
            return hidden

        def computed(rows: Tensor, n: int) -> Tensor:
            of_rows: Tensor = self._base(batch.input_ids[rows, :n], **options).last_hidden_state
            return of_rows

        width = batch.input_ids.shape[1]
        ends = batch.reads % width + 1  # behind a row's last token something is predicted
        lengths = ends.new_zeros(len(batch.input_ids))
        lengths = lengths.scatter_reduce(0, batch.reads // width, ends, "amax")
        return by_length(computed, lengths, width)

    @torch.inference_mode()
    def evaluate(
        self,
        examples: Sequence[Encoded],
        max_tokens: int,
        progress: Callable[[int], None] | None = None,
    ) -> Evaluation:
        """Scores a whole split, with examples of similar length together; processes divide its batches.

        A forward pass has at most `max_tokens` padded tokens; a longer example is a batch by itself. `progress` is
        called with the number of newly scored examples, over all processes. Predictions are in the examples' order.
        """
        return self._evaluation(
            self._of_each(examples, max_tokens, self._scored, progress), examples
        )

    def _of_each(
        self,
        examples: Sequence[Encoded],
        max_tokens: int,
        compute: Callable[[Batch], Tensor],
        progress: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Returns what is computed of the examples of each batch; processes divide the batches.  # (n, ...)."""
        plan = self._plan(examples, max_tokens)

        def computed(n: int) -> Tensor:
            indices, rows = plan[n]
            return compute(self._batch([examples[i] for i in indices], rows))

        return self._processes.divide([indices for indices, _ in plan], computed, progress)

    def _evaluation(self, found: Tensor, examples: Sequence[Encoded]) -> Evaluation:
        """Returns the evaluation of a split from what `_scored` returned of its examples."""
        losses, weights, best, probabilities = found.T.tolist()
        predictions = [int(candidate) for candidate in best]
        loss = sum(x * w for x, w in zip(losses, weights, strict=True)) / sum(weights)
        if self._objective == "completion":
            perplexity = math.exp(loss) if loss < MOST_LOSS else math.inf
            return Evaluation(loss, perplexity, [], NAMED["perplexity"], losses=losses)
        right = sum(e.is_right(p) for p, e in zip(predictions, examples, strict=True))
        accuracy = right / len(examples)
        return Evaluation(loss, accuracy, predictions, probabilities=probabilities)

    @torch.inference_mode()
    def features(self, examples: Sequence[Encoded], max_tokens: int) -> Tensor:
        """Returns the last hidden state where each example's answer is predicted; processes divide them.  # (n, D)."""

        def states(batch: Batch) -> Tensor:
            return self._hidden(batch)[batch.token_reads[:, 0, 0]].float()

        return self._of_each(examples, max_tokens, states)

    def _scored(self, batch: Batch) -> Tensor:
        """Returns loss, weight in the mean, prediction and its probability of each example, float64.  # (n, 4)."""
        comparable = self._objective == "classification"
        scores = self._comparable(batch) if comparable else self.scores(batch)
        each, parts = self._losses(scores, batch)
        of_each = (each, parts, scores.argmax(-1), scores.double().softmax(-1).amax(-1))
        return torch.stack([values.double() for values in of_each], dim=1)

    def _plan(self, examples: Sequence[Encoded], max_tokens: int) -> Plan:
        """Returns a split's batches and their rows; cached for two splits."""
        for known, budget, plan in self._plans:
            if known is examples and budget == max_tokens:
                return plan
        batches = length_batches([self._collator.cost(e) for e in examples], max_tokens)
        plan = [(b, self._collator.rows([examples[i] for i in b])) for b in batches]
        self._plans = [*self._plans[-1:], (examples, max_tokens, plan)]
        return plan

    def _losses(self, scores: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns every example's loss and its weight in the mean: for ``lm`` its tokens.  # (B,), (B,)."""
        if self._objective == "classification":
            each = F.cross_entropy(scores, batch.labels, reduction="none")
            return each, torch.ones_like(each)
        true = batch.labels[:, None]
        tokens = (~batch.absent).sum(-1)  # (B, C)
        return -scores.gather(1, true)[:, 0], tokens.gather(1, true)[:, 0]


def _means(values: Tensor, batch: Batch) -> Tensor:
    """Returns the mean over each candidate's tokens; -inf for one that an example does not have.  # (B, C)."""
    absent = batch.absent.all(-1)
    return (values.sum(-1) / (~batch.absent).sum(-1)).masked_fill(absent, -torch.inf)


def length_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Groups indices so that rows padded to their group's longest stay within a budget, shortest rows first.

    A group's rows are of similar length, too. With a large budget every row would otherwise be as long as the longest.
    `lengths` are in tokens; a row longer than `max_tokens` is a group by itself.
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
