"""Masked models: logits of the label words at the mask, exact whatever else is in the batch."""

import numpy as np
import pytest
import torch

from tests.support.plain_scoring import plain_masked_loss, plain_masked_scores
from tests.support.tiny_models import MASKED, VOCABULARY, roberta
from zo.lm.scoring import CandidateScorer
from zo.tasks import Encoded

WORDS = [[7], [201], [44]]


def make_examples(lengths=(7, 2, 19, 1, 11), seed=0):
    """Prompts with the mask, token 3, at a place of their own: first, last or in the middle."""
    random = np.random.default_rng(seed)
    examples = []
    for i, n in enumerate(lengths):
        mask_at = int(random.integers(n))
        ids = random.integers(4, VOCABULARY, n).tolist()
        examples.append(Encoded([*ids[:mask_at], 3, *ids[mask_at + 1 :]], WORDS, i % 3, mask_at))
    return examples


def scorer_of(model, **options):
    return CandidateScorer(model, pad_id=model.config.pad_token_id, kind="masked", **options)


@pytest.mark.parametrize("kind", MASKED)
def test_scores_and_loss_equal_the_plain_rendering(kind):
    model, examples = MASKED[kind](), make_examples()
    scorer = scorer_of(model)
    batch = scorer.collate(examples)
    expected = torch.tensor(plain_masked_scores(model, examples))
    assert expected.std(dim=1).mean() > 0.5  # the words differ, so that order matters
    torch.testing.assert_close(scorer.scores(batch), expected, rtol=0, atol=1e-5)
    assert scorer.loss(batch) == pytest.approx(plain_masked_loss(model, examples), abs=1e-5)


@pytest.mark.parametrize("kind", MASKED)
def test_evaluation_equals_the_plain_rendering_in_the_original_order(kind):
    model, examples = MASKED[kind](), make_examples(range(1, 24))
    np.random.default_rng(1).shuffle(examples)
    result = scorer_of(model).evaluate(examples, 60)
    assert result.predictions == [int(np.argmax(s)) for s in plain_masked_scores(model, examples)]
    assert len(set(result.predictions)) > 1
    assert result.loss == pytest.approx(plain_masked_loss(model, examples), abs=1e-5)


def test_the_head_is_applied_once_per_example_all_of_it():
    model, shapes = roberta(), {}
    scorer = scorer_of(model)
    parts = {"encoder": model.roberta, "dense": model.lm_head.dense, "out": model.lm_head.decoder}
    for name, part in parts.items():
        part.register_forward_hook(
            lambda _, __, out, name=name: shapes.setdefault(name, []).append(tuple(out[0].shape))
        )
    scorer.loss(scorer.collate(make_examples()))
    assert shapes["encoder"] == [(2, 20, 32)]  # 19 + 1 and 7 + 2 + 11 tokens
    assert [len(shapes[name]) for name in ("dense", "out")] == [1, 1]
    assert shapes["out"] == [(VOCABULARY,)]  # of the first of five masks
