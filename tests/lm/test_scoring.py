"""Losses and scores of candidates: those of a plain rendering, at no more cost than they need."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from tests.support.pairwise import rotated
from tests.support.plain_scoring import plain_loss, plain_scores
from tests.support.quadratic import DTYPES
from tests.support.tiny_models import (
    MASKED,
    MODELS,
    VOCABULARY,
    examples_of,
    kind_of,
    opt,
)
from zo.lm.scoring.candidates import CandidateScorer, length_batches

SHAPES = {"one token": [1, 1], "several tokens": [2, 3], "mixed lengths": [1, 4, 2, 1, 3]}


@pytest.mark.parametrize(("kind", "shape"), rotated(["opt", "opt, untied", "gpt2"], SHAPES))
def test_the_differentiable_loss_is_the_loss_and_its_gradient_the_slope(kind, shape):
    model = MODELS[kind]().double()
    scorer = CandidateScorer(model, pad_id=1, loss_dtype="model")
    batch = scorer.collate(examples_of(SHAPES[shape]))
    assert scorer.differentiable_loss(batch).item() == scorer.loss(batch)
    gradcheck(
        lambda *_: scorer.differentiable_loss(batch), tuple(model.parameters()), fast_mode=True
    )


@pytest.mark.parametrize(
    ("kind", "shape", "logits"),
    [
        ("opt", "several tokens", [5 * (1 + 3)]),
        ("llama", "mixed lengths", [5 * (1 + 6)]),
        ("llama", "one token", [5]),
        ("opt", "one token", []),
        ("roberta", "one token", [5]),
    ],
)
def test_each_text_is_computed_once_and_logits_only_where_tokens_are_predicted(kind, shape, logits):
    """Of answers of one token only their own, by looking them up, where embeddings are tied.

    What a row's prompts begin with stands there once, but for masked models.
    """
    model, start = MODELS[kind](), range(50, 60)
    examples = examples_of(SHAPES[shape], masked=kind in MASKED, start=start)
    scorer = CandidateScorer(model, pad_id=1, kind=kind_of(model))
    looked_up, computed = [], []
    model.get_input_embeddings().register_forward_hook(lambda *c: looked_up.append(c[1][0].shape))
    model.lm_head.register_forward_hook(lambda *c: computed.append(c[2].shape))
    scorer.loss(scorer.collate(examples))
    assert computed == [(n, VOCABULARY) for n in logits]
    texts = [ids for e in examples for ids in [e.prompt_ids, *(c[:-1] for c in e.candidate_ids)]]
    tokens, *answers = looked_up
    shared = 0 if kind in MASKED else len(start) * (len(examples) - tokens[0])
    assert 1 <= tokens.numel() / (sum(map(len, texts)) - shared) <= 1.2
    assert answers == ([] if logits else [(5, 2)])


def test_a_candidate_that_an_example_lacks_counts_for_nothing():
    model, examples = opt(), [*examples_of([1, 1, 1]), *examples_of([1, 1])]
    scorer, scores = CandidateScorer(model, pad_id=1), plain_scores(model, examples)
    expected = pytest.approx(plain_loss(model, examples), abs=1e-5)
    evaluated = scorer.evaluate(examples, 200)
    assert [scorer.loss(scorer.collate(examples)), evaluated.loss] == [expected] * 2
    assert evaluated.predictions == [int(np.argmax(of)) for of in scores]


@pytest.mark.parametrize(("shape", "dtype"), rotated(SHAPES, DTYPES[1:]))
def test_loss_dtype_decides_where_half_precision_ends(dtype, shape):
    model = opt(init_std=0.05).to(dtype)
    examples = examples_of(SHAPES[shape], range(1, 30))
    wide, narrow = CandidateScorer(model, 1), CandidateScorer(model, 1, loss_dtype="model")
    batch = wide.collate(examples)
    assert wide.scores(batch).dtype == torch.float32
    assert narrow.scores(batch).dtype == dtype
    assert narrow.loss(batch) == torch.tensor(narrow.loss(batch), dtype=dtype).item()
    assert wide.loss(batch) != torch.tensor(wide.loss(batch), dtype=dtype).item()
    exact = torch.nn.functional.cross_entropy(narrow.scores(batch), batch.labels).item()
    assert narrow.loss(batch) == exact, "the rounding of each score is kept"
    assert wide.loss(batch) == pytest.approx(plain_loss(model, examples), abs=0.05)


@pytest.mark.parametrize(("kind", "shape"), [("opt", "several tokens"), ("llama", "mixed lengths")])
def test_the_lm_objective_is_the_loss_of_the_true_candidates_tokens(kind, shape):
    """Of examples with different numbers of candidates, of which longer ones count for more."""
    model, examples = MODELS[kind](), [*examples_of(SHAPES[shape]), *examples_of([1, 2])]
    scorer = CandidateScorer(model, pad_id=1, objective="lm")
    scores, true = plain_scores(model, examples), [e.label for e in examples]
    tokens = [len(e.candidate_ids[e.label]) for e in examples]
    expected = -np.average([of[i] for of, i in zip(scores, true, strict=True)], weights=tokens)
    batch = scorer.collate(examples)
    alone = scorer.collate([e.true_candidate_alone() for e in examples])
    assert alone.input_ids.numel() < batch.input_ids.numel()
    evaluated = scorer.evaluate(examples, 60)
    found = [scorer.loss(batch), *scorer.branches(batch, 2), scorer.loss(alone), evaluated.loss]
    assert found == pytest.approx([expected] * 5, abs=1e-5)
    assert evaluated.predictions == [int(np.argmax(of)) for of in scores]


@pytest.mark.parametrize("kind", ["opt", "llama", "gpt2"])
def test_tokens_of_a_completion_that_are_not_trained_count_for_nothing(kind):
    """Neither in the loss, nor in its mean, nor in the output embedding; each text is still one pass."""
    model, examples = MODELS[kind](), examples_of([6])
    marks = [tuple((i + j) % 3 > 0 for j in range(6)) for i in range(len(examples))]
    partly = [replace(e, trained=of) for e, of in zip(examples, marks, strict=True)]
    total, count = 0.0, sum(map(sum, marks))
    for e, of in zip(examples, marks, strict=True):
        ids = torch.tensor([[*e.prompt_ids, *e.candidate_ids[0]]])
        with torch.no_grad():
            values = torch.log_softmax(model(ids).logits[0], -1)[len(e.prompt_ids) - 1 : -1]
        total -= values[range(6), e.candidate_ids[0]][list(of)].sum().item()
    scorer, logits = CandidateScorer(model, pad_id=1, objective="completion"), []
    batch = scorer.collate(partly)
    model.lm_head.register_forward_hook(lambda *c: logits.append(len(c[2])))
    found = [scorer.loss(batch), *scorer.branches(batch, 2), scorer.evaluate(partly, 60).loss]
    assert found == pytest.approx([total / count] * 4, abs=1e-5)
    assert logits[0] == count == scorer.share(partly)
    assert scorer.loss(scorer.collate(examples)) != pytest.approx(found[0], abs=1e-3)


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 200))
def test_length_batches_hold_every_index_once_within_the_budget(lengths, max_tokens):
    batches = length_batches(lengths, max_tokens)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        widest = max(lengths[i] for i in batch)
        assert len(batch) * widest <= max_tokens or len(batch) == 1
        assert widest <= 1.25 * min(lengths[i] for i in batch)
