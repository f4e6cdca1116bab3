"""Rows that hold several texts: laid out without loss, as cheap as can be, and scored as if each text were alone."""

import heapq
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DebertaV2Config, DebertaV2ForMaskedLM, Lfm2Config, Lfm2ForCausalLM

from tests.support.plain_scoring import plain_loss, plain_masked_scores, plain_scores
from tests.support.tiny_models import DECODERS, MASKED, VOCABULARY, opt
from zo.lm.collate import Collator
from zo.lm.heads import packs
from zo.lm.packing import Blocks, Tree, pack, shared_beginning
from zo.lm.scoring import CandidateScorer
from zo.tasks import Encoded, TaskError

SHORT = st.lists(st.integers(0, 2), min_size=1, max_size=6)
WORDS = [[7], [201], [44]]


@given(st.lists(SHORT, min_size=1, max_size=8))
def test_a_tree_holds_every_beginning_once_and_a_token_sees_what_leads_to_it(texts):
    tree = Tree()
    columns = [tree.add(text) for text in texts]
    beginnings = {tuple(text[: n + 1]) for text in texts for n in range(len(text))}
    assert len(tree.ids) == len(beginnings)
    sees = tree.sees()
    for text, of_text in zip(texts, columns, strict=True):
        assert [tree.ids[c] for c in of_text] == text
        assert [tree.positions[c] for c in of_text] == list(range(len(text)))
        for n, column in enumerate(of_text):
            assert np.flatnonzero(sees[column]).tolist() == of_text[: n + 1]


def test_what_follows_a_token_goes_on_from_it():
    tree = Tree()
    prompt = tree.add([5, 6])
    one, other = tree.add([7, 8], after=prompt[-1]), tree.add([7, 9], after=prompt[-1])
    assert one[0] == other[0]
    assert tree.ids == [5, 6, 7, 8, 9]
    assert np.flatnonzero(tree.sees()[other[1]]).tolist() == [0, 1, 2, 4]


@given(st.lists(SHORT, min_size=1, max_size=8))
def test_in_blocks_a_token_sees_its_whole_text_and_no_other(texts):
    blocks = Blocks()
    columns = [blocks.add(text) for text in texts]
    sees = blocks.sees()
    for text, of_text in zip(texts, columns, strict=True):
        assert [blocks.ids[c] for c in of_text] == text
        assert [blocks.positions[c] for c in of_text] == list(range(len(text)))
        assert all(np.flatnonzero(sees[c]).tolist() == of_text for c in of_text)


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


def plain_pack(lengths, shared, hidden):
    """As `pack`, with every number of rows tried."""
    best, least = None, float("inf")
    for n in range(1, len(lengths) + 1):
        rows, loads = [[] for _ in range(n)], [(shared, row) for row in range(n)]
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            load, row = min(loads)
            loads[loads.index((load, row))] = (load + lengths[i] - shared, row)
            rows[row].append(i)
        width = max(loads)[0]
        if (cost := n * width * (3 * hidden + width)) < least:
            best, least = [sorted(row) for row in rows], cost
    return best


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=24), st.integers(0, 3), st.integers(1, 999)
)
def test_rows_are_the_best_of_every_number_of_rows(lengths, shared, hidden):
    lengths = [n + shared for n in lengths]
    assert pack(lengths, shared, hidden) == plain_pack(lengths, shared, hidden)


def test_few_numbers_of_rows_are_tried_for_thousands_of_short_texts(monkeypatch):
    tried = []
    monkeypatch.setattr(
        "heapq.heapreplace",
        lambda heap, item, f=heapq.heapreplace: (tried.append(0), f(heap, item))[1],
    )
    lengths = np.random.default_rng(0).integers(20, 26, 2184).tolist()
    pack(lengths, 2, 576)
    assert len(tried) < 200 * len(lengths)  # each number of rows tried takes one per text


def test_a_split_is_packed_once(monkeypatch):
    scorer, examples = CandidateScorer(opt(), pad_id=1), examples_of([1, 1], LENGTHS)
    first = scorer.evaluate(examples, 64)
    monkeypatch.setattr("zo.lm.collate.pack", lambda *_: pytest.fail("packed again"))
    assert scorer.evaluate(examples, 64) == first


def test_a_wide_model_packs_tightly_and_a_narrow_one_spares_attention():
    lengths = [50, 10, 10, 10]
    assert pack(lengths, 0, 5000) == [[0, 1, 2, 3]]  # 80 tokens
    assert pack(lengths, 0, 1) == [[0], [1, 2, 3]]  # 100, of which none sees more than 50


def test_the_shared_beginning_ends_where_a_text_does_or_differs():
    assert shared_beginning([[1, 2, 3], [1, 2, 4, 5]]) == 2
    assert shared_beginning([[1, 2], [1, 2, 4]]) == 2
    assert shared_beginning([[1], [2]]) == 0
    assert shared_beginning([[1, 2]]) == 2


def examples_of(candidates, lengths, masked=False):
    """Prompts that begin alike."""
    random = np.random.default_rng(0)

    def tokens(n):
        return random.integers(5, VOCABULARY, n).tolist()

    if masked:
        return [Encoded([2, 4, *tokens(n), 3], WORDS, i % 3, n + 2) for i, n in enumerate(lengths)]
    return [
        Encoded([2, 4, *tokens(n)], [tokens(m) for m in candidates], i % len(candidates))
        for i, n in enumerate(lengths)
    ]


LENGTHS = (30, 2, 19, 1, 40, 11, 7)
LAYOUTS = {
    "one row": [list(range(7))],
    "two": [[0, 3, 6], [1, 2, 4, 5]],
    "alone": [[b] for b in range(7)],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("candidates", [[1, 1], [1, 4, 2]], ids=str)
@pytest.mark.parametrize("kind", [*DECODERS, *MASKED])
def test_however_texts_are_packed_they_are_scored_as_if_alone(
    kind, candidates, layout, monkeypatch
):
    """One row is 110 tokens and more: longer than the models have positions for."""
    masked = kind in MASKED
    model = (MASKED if masked else DECODERS)[kind]()
    examples = examples_of(candidates, LENGTHS, masked)
    monkeypatch.setattr("zo.lm.collate.pack", lambda *_: LAYOUTS[layout])
    scorer = CandidateScorer(model, pad_id=1, kind="masked" if masked else "decoder")
    batch = scorer.collate(examples)
    assert len(batch.input_ids) == len(LAYOUTS[layout])
    assert batch.input_ids.shape[1] > 64 or layout != "one row"
    expected = torch.tensor((plain_masked_scores if masked else plain_scores)(model, examples))
    torch.testing.assert_close(scorer.scores(batch), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("objective", ["classification", "lm"])
def test_the_gradient_does_not_depend_on_the_layout(objective, monkeypatch):
    model, examples = opt(), examples_of([1, 4, 2], LENGTHS)
    scorer, parameters = CandidateScorer(model, 1, objective=objective), list(model.parameters())
    found = []
    for layout in LAYOUTS.values():
        monkeypatch.setattr("zo.lm.collate.pack", lambda *_, layout=layout: layout)
        loss = scorer.differentiable_loss(scorer.collate(examples))
        found.append(torch.autograd.grad(loss, parameters))
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=0, atol=2e-5)


@pytest.mark.parametrize("multiple", [8, 64])
@pytest.mark.parametrize("kind", [*DECODERS, *MASKED])
def test_wider_rows_change_nothing(kind, multiple):
    masked = kind in MASKED
    model = (MASKED if masked else DECODERS)[kind]()
    examples = examples_of([1, 4, 2], LENGTHS, masked)
    name = "masked" if masked else "decoder"
    wide = Collator(model, 1, name, multiple)(examples)
    assert wide.input_ids.shape[1] % multiple == 0
    scorer = CandidateScorer(model, pad_id=1, kind=name)
    torch.testing.assert_close(
        scorer.scores(wide), scorer.scores(scorer.collate(examples)), rtol=0, atol=1e-5
    )


def test_one_text_is_a_batch():
    model, examples = opt(), examples_of([1, 1], [4])
    scorer = CandidateScorer(model, pad_id=1)
    batch = scorer.collate(examples)
    assert batch.input_ids.shape == (1, 6)
    assert scorer.loss(batch) == pytest.approx(plain_loss(model, examples), abs=1e-5)


def test_equal_prompts_are_computed_once():
    scorer, (example,) = CandidateScorer(opt(), pad_id=1), examples_of([1, 1], [4])
    batch = scorer.collate([example] * 3)
    assert batch.input_ids.shape == (1, 6)
    assert batch.reads.tolist() == [5]
    assert torch.equal(*scorer.scores(batch)[1:])


def deberta():
    """Knows distances in columns, so that its texts cannot share a row."""
    config = DebertaV2Config(
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_hidden_layers=2,
        vocab_size=VOCABULARY,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        pad_token_id=0,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return DebertaV2ForMaskedLM(config).eval()


def lfm2():
    """Half its layers are convolutions over neighbouring columns."""
    config = Lfm2Config(
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        layer_types=["conv", "full_attention"],
        vocab_size=VOCABULARY,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Lfm2ForCausalLM(config).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_models_that_keep_texts_in_one_row_apart_are_told_from_those_that_do_not(dtype):
    for decoder in DECODERS.values():
        assert packs(decoder().to(dtype), "decoder")
    for masked in MASKED.values():
        assert packs(masked().to(dtype), "masked")
    assert not packs(lfm2().to(dtype), "decoder")
    assert not packs(deberta().to(dtype), "masked")


def test_texts_that_cannot_share_a_row_have_one_each():
    for model, kind, plain in (
        (lfm2(), "decoder", plain_scores),
        (deberta(), "masked", plain_masked_scores),
    ):
        examples = examples_of([1, 1], LENGTHS, kind == "masked")
        scorer = CandidateScorer(model, pad_id=0, kind=kind)
        batch = scorer.collate(examples)
        assert len(batch.input_ids) == len(examples)
        expected = torch.tensor(plain(model, examples))
        torch.testing.assert_close(scorer.scores(batch), expected, rtol=0, atol=2e-5)
    with pytest.raises(TaskError, match=r"task\.candidates: .* answers of one token"):
        CandidateScorer(lfm2(), pad_id=0).collate(examples_of([1, 2], LENGTHS))


@pytest.mark.parametrize("objective", ["classification", "lm"])
@pytest.mark.parametrize("candidates", [[1, 1], [1, 4, 2]], ids=str)
@pytest.mark.parametrize("kind", [*DECODERS, *MASKED, "lfm2"])
def test_copies_of_a_batch_have_its_loss_each(kind, candidates, objective):
    if (kind in MASKED and objective == "lm") or (kind == "lfm2" and candidates != [1, 1]):
        pytest.skip("not scored so")
    masked = kind in MASKED
    model = {**DECODERS, **MASKED, "lfm2": lfm2}[kind]()
    name = "masked" if masked else "decoder"
    scorer = CandidateScorer(model, pad_id=1, kind=name, objective=objective)
    batch = scorer.collate(examples_of(candidates, LENGTHS, masked))
    assert scorer.branches(batch, 3) == pytest.approx([scorer.loss(batch)] * 3, abs=1e-5)


def test_copies_go_through_the_model_one_after_the_other():
    """The first half of what a layer gets is the first copy's: doubled in the second, two losses come out."""
    model = opt()
    scorer = CandidateScorer(model, pad_id=1)
    batch = scorer.collate(examples_of([1, 4, 2], LENGTHS))
    layer = model.model.decoder.layers[0]

    def doubled(_, __, out):
        return torch.cat([out[: len(out) // 2], 2 * out[len(out) // 2 :]])

    first = scorer.loss(batch)
    handle = layer.register_forward_hook(lambda _, __, out: 2 * out)
    second = scorer.loss(batch)
    handle.remove()
    assert second != pytest.approx(first, abs=1e-3)
    layer.register_forward_hook(doubled)
    assert scorer.branches(batch, 2) == pytest.approx([first, second], abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [*DECODERS, *MASKED])
def test_in_half_precision_shared_rows_are_as_near_to_the_truth_as_a_row_each(
    kind, dtype, monkeypatch
):
    masked = kind in MASKED
    model, name = (
        (MASKED if masked else DECODERS)[kind]().to(dtype),
        "masked" if masked else "decoder",
    )
    examples = examples_of([1, 4, 2], LENGTHS, masked)
    found = []
    for layout in LAYOUTS.values():
        monkeypatch.setattr("zo.lm.collate.pack", lambda *_, layout=layout: layout)
        scorer = CandidateScorer(model, 1, kind=name)
        found.append(scorer.scores(scorer.collate(examples)))
    truth = torch.tensor((plain_masked_scores if masked else plain_scores)(model.float(), examples))
    shared, two, alone = ((scores - truth).pow(2).mean().sqrt() for scores in found)
    assert 0 < max(shared, two) < 1.5 * alone
