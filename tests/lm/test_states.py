"""Hidden states that are kept per example: in any batch and layout the scores of computing them anew."""

from itertools import chain

import pytest
import torch

from tests.lm.test_adapt import adapted
from tests.support.pairwise import rotated
from tests.support.quadratic import same
from tests.support.tiny_models import ALONE, MODELS, PACKED, WINDOWS, examples_of, kind_of, t5
from tests.weights.test_prefix import ARCHITECTURES, LAST, counted, train_only
from zo.lm.scoring.candidates import CandidateScorer
from zo.lm.scoring.encoder_decoder import EncoderDecoderScorer
from zo.lm.scoring.states import KeptStates
from zo.weights.prefix import FrozenPrefix, PrefixError
from zo.weights.space import ParameterSpace

LENGTHS = (12, 2, 9, 1, 14, 7, 3)
EVERY = {**ARCHITECTURES, **PACKED, **WINDOWS, **ALONE}


def scorer_of(model):
    if model.config.is_encoder_decoder:
        return EncoderDecoderScorer(model, 1, kind="encoder-decoder")
    return CandidateScorer(model, 1, kind=kind_of(model))


def prefix_of(model):
    return FrozenPrefix(model, [p for p in model.parameters() if p.requires_grad])


def keeping(model, examples):
    """Returns a scorer that keeps the examples' states."""
    scorer = scorer_of(model)
    like = scorer.find_states(prefix_of(model), examples[0])
    scorer.keep(KeptStates([examples], like.shape[-1], like))
    return scorer


def examples_for(model, candidates=(1, 4, 2)):
    """Two candidates begin alike; prompts do, too."""
    masked = kind_of(model) == "masked"
    found = examples_of([1, 1] if masked else list(candidates), LENGTHS, masked, start=(2, 4))
    if not masked:
        for example in found:
            example.candidate_ids[2][:] = example.candidate_ids[1][:2]
    return found


@pytest.mark.parametrize(
    ("name", "candidates"), rotated([*EVERY, "t5"], [[1, 4, 2], [2, 3, 2]]), ids=str
)
def test_scores_are_those_of_computing_every_block(name, candidates):
    """Of an evaluation, mini-batches and copies of one; after the first time no frozen block is computed."""
    make = t5 if name == "t5" else EVERY[name]
    model = train_only(make(), r"decoder\." if name == "t5" else LAST)
    examples = examples_for(model, candidates)
    plain, keeps = scorer_of(model), keeping(model, examples)
    expected = plain.evaluate(examples, 60)
    first = keeps.evaluate(examples, 60)
    calls = counted(model)
    again = keeps.evaluate(examples, 60)
    assert first == again
    assert again.predictions == expected.predictions
    assert again.loss == pytest.approx(expected.loss, abs=1e-5)
    for part in (examples, examples[:3], examples[4:1:-1]):
        batches = plain.collate(part), keeps.collate(part)
        loss = plain.loss(batches[0])
        before = dict(calls)
        assert keeps.loss(batches[1]) == pytest.approx(loss, abs=1e-5)
        for path in calls:
            frozen = path.startswith("encoder") if name == "t5" else not path.endswith("1")
            assert (calls[path] == before[path]) == frozen
        if name != "t5":
            assert keeps.branches(batches[1], 2) == pytest.approx([loss] * 2, abs=1e-5)


@pytest.mark.parametrize("name", ["llama", "bert", "falcon"])
def test_no_bit_depends_on_which_batch_came_first(name):
    losses = []
    for order in ([0, 1, 2, 3, 4, 5, 6], [6, 2, 4, 0, 1, 3, 5]):
        model = train_only(EVERY.get(name, MODELS.get(name))(), LAST)
        examples = examples_for(model)
        scorer = keeping(model, examples)
        for i in order:
            scorer.loss(scorer.collate([examples[i], examples[order[0]]]))
        losses.append([scorer.loss(scorer.collate(examples)), scorer.evaluate(examples, 40).loss])
    assert losses[0] == losses[1]


def test_examples_of_other_splits_are_computed_whole():
    model = train_only(MODELS["llama"](), LAST)
    examples = examples_for(model)
    scorer, plain = keeping(model, examples[:4]), scorer_of(model)
    mixed = examples[2:6]
    assert scorer.loss(scorer.collate(mixed)) == plain.loss(plain.collate(mixed))


def test_the_gradient_is_that_of_the_whole_model():
    found = []
    for keeps in (True, False):
        model = train_only(MODELS["llama"](), LAST)
        examples = examples_for(model)
        scorer = keeping(model, examples) if keeps else scorer_of(model)
        scorer.differentiable_loss(scorer.collate(examples)).backward()
        found.append([p.grad for p in model.parameters() if p.requires_grad])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: train_only(MODELS["llama"](), rf"embed|{LAST}"),
            "enters model.layers is computed with trained",
        ),
        (
            lambda: train_only(MODELS["llama, tied"](), rf"lm_head|embed|{LAST}"),
            "is computed with trained",
        ),
        (lambda: adapted(MODELS["llama"](), "prompt").model, "is computed with trained weights"),
        (lambda: adapted(MODELS["llama"](), "prefix").model, "is computed with trained weights"),
        (lambda: train_only(t5(), "block.1"), "the encoder trains"),
    ],
)
def test_states_that_depend_on_trained_weights_are_not_kept(make, why):
    model = make()
    scorer = (
        EncoderDecoderScorer(model, 1) if hasattr(model, "encoder") else CandidateScorer(model, 1)
    )
    with pytest.raises(PrefixError, match=why):
        scorer.find_states(prefix_of(model), examples_for(model)[0])


def test_finding_states_moves_nothing():
    model = train_only(MODELS["opt"](), LAST)
    before = [p.clone() for p in model.parameters()]
    space = ParameterSpace.of(model, "factors")
    scorer = scorer_of(model)
    scorer.find_states(space.prefix, examples_for(model)[0])
    assert same([*chain(model.parameters())], before)
