"""Rows that hold several texts, of which each is scored as if it were alone."""

import numpy as np
import pytest
import torch

from tests.support.pairwise import pairwise
from tests.support.plain_scoring import plain_loss, plain_scores
from tests.support.quadratic import DTYPES
from tests.support.tiny_models import (
    DECODERS,
    MASKED,
    MODELS,
    PACKED,
    UNUSUAL,
    WINDOWS,
    examples_of,
    kind_of,
    reformer,
)
from zo.lm.config import ModelError, StatesError
from zo.lm.scoring.candidates import CandidateScorer
from zo.lm.scoring.heads import check_head, packs
from zo.lm.scoring.states import FrozenBlocks

LENGTHS = (30, 2, 19, 1, 40, 11, 7)  # in one row 110 tokens: more than models have positions for
LAYOUTS = {
    "one row": [list(range(7))],
    "two": [[0, 3, 6], [1, 2, 4, 5]],
    "alone": [[b] for b in range(7)],
}


@pytest.mark.parametrize("what", UNUSUAL)
def test_texts_share_rows_where_a_model_keeps_them_apart(what):
    model = UNUSUAL[what]()
    check_head(model, kind_of(model))
    shared = [packs(model.to(dtype), kind_of(model)) for dtype in DTYPES]
    assert shared == [what in PACKED | WINDOWS] * len(DTYPES)


@pytest.mark.parametrize(
    ("name", "layout", "candidates"),
    [
        *pairwise([*DECODERS, *MASKED], [*LAYOUTS, "as it packs"], [[1, 1], [1, 4, 2]]),
        *((name, "as it packs", [1, 1]) for name in PACKED),
        *(
            pytest.param(name, "as it packs", [1, 4, 2], marks=pytest.mark.process)
            for name in UNUSUAL
        ),
    ],
    ids=str,
)
def test_however_texts_are_packed_they_are_scored_as_if_alone(
    name, candidates, layout, monkeypatch
):
    model = (MODELS | UNUSUAL)[name]()
    examples = examples_of(candidates, LENGTHS, kind_of(model) == "masked", start=(2, 4))
    scorer = CandidateScorer(model, pad_id=1, kind=kind_of(model))
    scorer.check(examples)
    assert not scorer.apart, "or it would not pack"
    with monkeypatch.context() as patch:
        if layout in LAYOUTS:
            patch.setattr("zo.lm.scoring.collate.pack", lambda *_: LAYOUTS[layout])
        batch = scorer.collate(examples)
    assert layout not in LAYOUTS or len(batch.input_ids) == len(LAYOUTS[layout])
    expected = torch.tensor(plain_scores(model, examples))
    torch.testing.assert_close(scorer.scores(batch), expected, rtol=0, atol=2e-5)
    plain = plain_loss(model, examples)
    assert [scorer.loss(batch), *scorer.branches(batch, 2)] == pytest.approx([plain] * 3, abs=1e-5)
    done = []
    found = scorer.evaluate(examples[::-1], 60, done.append)
    predictions = expected.argmax(1).tolist()
    assert found.predictions[::-1] == predictions
    right = [p == e.label for p, e in zip(predictions, examples, strict=True)]
    assert found.value == np.mean(right)
    assert found.loss == pytest.approx(plain, abs=1e-5)
    assert sum(done) == len(examples)
    assert len(done) > 1


def test_a_model_that_sorts_padding_in_computes_texts_of_one_length_at_a_time():
    examples = examples_of([1, 4, 2], LENGTHS)
    model = reformer()
    scorer = CandidateScorer(model, pad_id=1)
    scorer.check(examples)
    assert scorer.notes == [
        "padding changes the scores of ReformerModelWithLMHead: each pass has texts of one length"
    ]
    batch = scorer.collate(examples)
    alone = torch.cat([scorer.scores(scorer.collate([example])) for example in examples])
    torch.testing.assert_close(scorer.scores(batch), alone, rtol=0, atol=2e-5)
    losses = [*scorer.branches(batch, 2), scorer.differentiable_loss(batch).item()]
    assert losses == pytest.approx([scorer.loss(batch)] * 3)
    found = scorer.evaluate(examples[::-1], 60)
    assert found.predictions[::-1] == alone.argmax(1).tolist()
    with pytest.raises(StatesError, match="each pass has texts of one length"):
        scorer.find_frozen(FrozenBlocks(model, [*model.lm_head.parameters()]), examples[0])
    with pytest.raises(ModelError, match=r"^model\.path: Reformer"):
        CandidateScorer(reformer(hash_seed=None), pad_id=1).check(examples)
