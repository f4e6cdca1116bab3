"""Rows that hold several texts: laid out without loss, as cheap as can be, and scored as if each text were alone."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pairwise import pairwise
from tests.support.plain_scoring import plain_loss, plain_scores
from tests.support.quadratic import DTYPES
from tests.support.tiny_models import (
    BLOOM,
    DECODERS,
    LLAMA,
    MASKED,
    MASKED_LM,
    MODELS,
    VOCABULARY,
    examples_of,
    random_model,
)
from zo.lm.heads import check_head, packs
from zo.lm.packing import Row, pack
from zo.lm.scoring import CandidateScorer
from zo.tasks import TaskError

SHORT = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@given(st.lists(SHORT, min_size=1, max_size=8))
def test_a_tree_holds_every_beginning_once_and_blocks_hold_whole_texts(texts):
    """In a tree a token sees what leads to it, in blocks its whole text and no other."""
    tree, blocks = Row(), Row(masked=True)
    columns = [(tree.add(text), blocks.add(text)) for text in texts]
    assert len(tree.ids) == len({tuple(text[: n + 1]) for text in texts for n in range(len(text))})
    for text, both in zip(texts, columns, strict=True):
        for layout, of_text in zip((tree, blocks), both, strict=True):
            assert [layout.ids[c] for c in of_text] == text
            assert [layout.positions[c] for c in of_text] == list(range(len(text)))
            for n, column in enumerate(of_text):
                seen = of_text[: n + 1] if layout is tree else of_text
                assert np.flatnonzero(layout.sees()[column]).tolist() == seen


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=20), st.integers(0, 3), st.integers(1, 999)
)
def test_rows_hold_every_text_once_and_cost_no_more_than_one_row_or_a_row_each(
    lengths, shared, hidden
):
    lengths = [n + shared for n in lengths]
    rows = pack(lengths, shared, hidden)
    assert sorted(itertools.chain(*rows)) == list(range(len(lengths)))
    assert all(rows)

    def cost(groups):
        width = max(shared + sum(lengths[i] - shared for i in group) for group in groups)
        return len(groups) * width * (3 * hidden + width)

    everything = list(range(len(lengths)))
    assert cost(rows) <= min(cost([everything]), cost([[i] for i in everything]))


LENGTHS = (30, 2, 19, 1, 40, 11, 7)
LAYOUTS = {
    "one row": [list(range(7))],
    "two": [[0, 3, 6], [1, 2, 4, 5]],
    "alone": [[b] for b in range(7)],
}


@pytest.mark.parametrize(
    ("kind", "layout", "candidates"),
    pairwise([*DECODERS, *MASKED], [*LAYOUTS, "as it packs"], [[1, 1], [1, 4, 2]]),
    ids=str,
)
def test_however_texts_are_packed_they_are_scored_as_if_alone(
    kind, candidates, layout, monkeypatch
):
    """One row is 110 tokens and more: longer than the models have positions for."""
    masked = kind in MASKED
    model = MODELS[kind]()
    examples = examples_of(candidates, LENGTHS, masked, start=(2, 4))
    scorer = CandidateScorer(model, pad_id=1, kind="masked" if masked else "decoder")
    with monkeypatch.context() as patch:
        if layout in LAYOUTS:
            patch.setattr("zo.lm.collate.pack", lambda *_: LAYOUTS[layout])
        batch = scorer.collate(examples)
    assert layout not in LAYOUTS or len(batch.input_ids) == len(LAYOUTS[layout])
    assert batch.input_ids.shape[1] > 64 or layout != "one row"
    expected = torch.tensor(plain_scores(model, examples))
    assert expected.std(dim=1).mean() > 0.5  # the candidates differ, so that order matters
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


GEMMA2 = LLAMA | {"initializer_range": 1.0, "head_dim": 8, "attn_implementation": "eager"}
MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
LFM2 = LLAMA | {"layer_types": ["conv", "full_attention"]}  # over neighbouring columns
DISTILBERT = {"dim": 32, "hidden_dim": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 301}
DEBERTA = MASKED_LM | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
DEBERTA |= {"position_biased_input": False, "pad_token_id": 0}  # knows distances in columns
UNUSUAL = {
    "capped logits": ("Gemma2ForCausalLM", {**GEMMA2, "final_logit_softcapping": 2.0}),
    "no positions": ("BloomForCausalLM", BLOOM),
    "no attention": ("MambaForCausalLM", MAMBA),
    "convolutions": ("Lfm2ForCausalLM", LFM2),
    "a loss beside its head": ("DistilBertForMaskedLM", DISTILBERT),
    "distances": ("DebertaV2ForMaskedLM", DEBERTA),
}


def unusual(what):
    name, settings = UNUSUAL[what]
    return random_model(name, **settings), "masked" if "Masked" in name else "decoder"


@pytest.mark.parametrize("what", UNUSUAL)
def test_unusual_models_are_scored_as_plainly_rendered_one_text_to_a_row_if_need_be(what):
    model, kind = unusual(what)
    check_head(model, kind)
    examples = examples_of([1, 1], LENGTHS, kind == "masked", start=(2, 4))
    scorer = CandidateScorer(model, pad_id=0, kind=kind)
    batch = scorer.collate(examples)
    alone = what in ("convolutions", "distances", "no attention", "no positions")
    assert (len(batch.input_ids) == len(examples)) == alone
    expected = torch.tensor(plain_scores(model, examples))
    torch.testing.assert_close(scorer.scores(batch), expected, rtol=0, atol=2e-5)
    if what == "convolutions":
        with pytest.raises(TaskError, match=r"task\.candidates: .* answers of one token"):
            scorer.collate(examples_of([1, 2], LENGTHS, start=(2, 4)))
    assert all(packs(model.to(dtype), kind) is not alone for dtype in DTYPES)
