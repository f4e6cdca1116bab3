import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pairwise import rotated
from tests.support.plain_scoring import plain_lm_loss, plain_loss, plain_scores
from tests.support.quadratic import DTYPES
from tests.support.tiny_models import DECODERS, MASKED, MODELS, VOCABULARY, examples_of, opt
from zo.lm.scoring import CandidateScorer, length_batches

SHAPES = {"one token": [1, 1], "several tokens": [2, 3], "mixed lengths": [1, 4, 2, 1, 3]}


@pytest.mark.parametrize(("kind", "shape"), rotated(DECODERS, SHAPES))
def test_the_differentiable_loss_is_the_loss_and_its_gradient_the_slope(kind, shape):
    """Along a random direction, against a two-sided difference; norms of Llama and Mistral compute in float32."""
    model, examples = DECODERS[kind]().double(), examples_of(SHAPES[shape])
    scorer = CandidateScorer(model, pad_id=1, loss_dtype="model")
    batch = scorer.collate(examples)
    loss = scorer.differentiable_loss(batch)
    assert loss.item() == scorer.loss(batch)
    loss.backward()
    generator = torch.Generator().manual_seed(3)
    parameters = list(model.parameters())
    z = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
    slope = sum(float((p.grad * z_p).sum()) for p, z_p in zip(parameters, z, strict=True))
    eps, losses = 1e-6 if kind in ("opt", "gpt2") else 1e-4, []
    for sign in (1, -2):
        with torch.no_grad():
            for p, z_p in zip(parameters, z, strict=True):
                p.add_(z_p, alpha=sign * eps)
        losses.append(scorer.loss(batch))
    assert abs(slope) > 0.01
    assert slope == pytest.approx((losses[0] - losses[1]) / (2 * eps), rel=2e-3)


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
    """Of answers of one token only their own, by looking them up, where embeddings are tied."""
    model, masked = MODELS[kind](), kind in MASKED
    examples = examples_of(SHAPES[shape], masked=masked)
    scorer = CandidateScorer(model, pad_id=1, kind="masked" if masked else "decoder")
    looked_up, computed = [], []
    model.get_input_embeddings().register_forward_hook(lambda *c: looked_up.append(c[1][0].shape))
    model.lm_head.register_forward_hook(lambda *c: computed.append(c[2].shape))
    scorer.loss(scorer.collate(examples))
    assert computed == [(n, VOCABULARY) for n in logits]
    texts = [ids for e in examples for ids in [e.prompt_ids, *(c[:-1] for c in e.candidate_ids)]]
    tokens, *answers = looked_up
    assert sum(map(len, texts)) <= tokens.numel() <= 1.2 * sum(map(len, texts))
    assert answers == ([] if logits else [(5, 2)])


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
    assert narrow.loss(batch) == pytest.approx(wide.loss(batch), abs=0.1)


def test_examples_with_other_numbers_of_candidates_share_a_batch():
    scorer = CandidateScorer(opt(), pad_id=1)
    two, three = examples_of([1, 2]), examples_of([1, 1, 2])
    together = scorer.scores(scorer.collate([*two, *three]))
    alone = scorer.scores(scorer.collate(two))
    assert torch.allclose(together[: len(two), :2], alone, atol=1e-5)
    assert (together[: len(two), 2] == -torch.inf).all()


def test_a_sliding_window_is_the_models_own_or_refused():
    model = DECODERS["mistral"](sliding_window=6)
    scorer = CandidateScorer(model, pad_id=1)
    examples = examples_of([1, 1])
    expected = torch.tensor(plain_scores(model, examples))
    scores = scorer.scores(scorer.collate(examples))
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="sees 6 at a time"):
        scorer.collate(examples_of([1, 2]))


@pytest.mark.parametrize(("kind", "shape"), rotated(DECODERS, ["several tokens", "mixed lengths"]))
def test_the_lm_objective_is_the_loss_of_the_true_candidates_tokens(kind, shape):
    model, examples = DECODERS[kind](), examples_of(SHAPES[shape])
    scorer = CandidateScorer(model, pad_id=1, objective="lm")
    expected = plain_lm_loss(model, examples)
    assert len({len(e.candidate_ids[e.label]) for e in examples}) > 1  # long answers count for more
    batch = scorer.collate(examples)
    found = [scorer.loss(batch), *scorer.branches(batch, 2)]
    assert found == pytest.approx([expected] * 3, abs=1e-5)
    alone = scorer.collate([e.true_candidate_alone() for e in examples])
    assert alone.input_ids.numel() < batch.input_ids.numel()
    assert scorer.loss(alone) == pytest.approx(expected, abs=1e-5)
    found = scorer.evaluate(examples, 60)
    assert found.loss == pytest.approx(expected, abs=1e-5)
    assert found.predictions == [int(np.argmax(s)) for s in plain_scores(model, examples)]


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 200))
def test_length_batches_hold_every_index_once_within_the_budget(lengths, max_tokens):
    batches = length_batches(lengths, max_tokens)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        widest = max(lengths[i] for i in batch)
        assert len(batch) * widest <= max_tokens or len(batch) == 1
        assert widest <= 1.25 * min(lengths[i] for i in batch)
    order = [lengths[i] for batch in batches for i in batch]
    assert order == sorted(order)


@pytest.mark.parametrize("objective", ["classification", "lm"])
def test_losses_of_shards_weighted_by_their_shares_are_the_loss_of_the_batch(objective):
    examples = examples_of(SHAPES["mixed lengths"])
    scorer = CandidateScorer(opt(), pad_id=1, objective=objective)
    shards = [examples[:2], examples[2:]]
    shares = [scorer.share(shard) for shard in shards]
    losses = [scorer.loss(scorer.collate(shard)) for shard in shards]
    assert np.average(losses, weights=shares) == pytest.approx(
        scorer.loss(scorer.collate(examples)), abs=1e-5
    )
