"""Sampled texts: a function of seed, step, prompt, sample and position, and of the weights; not of the batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from tests.lm.test_objectives import ASKED, PROMPTS, TASK, TOKENS
from tests.support.tiny_models import BART, LLAMA, VOCABULARY, opt, random_model, t5
from zo.lm.scoring import texts
from zo.lm.scoring.generation import Generator
from zo.lm.scoring.sampling import Draw, Draws, Sampling
from zo.lm.scoring.texts import TextScorer, text_scorer
from zo.noise.keys import SAMPLING, NoiseKey
from zo.noise.philox import words
from zo.rewards.tally import Ratings
from zo.tasks import TaskError

HOT = Sampling(temperature=1.0, top_p=1.0, seed=5)
ROWS = [(e, sample) for e in ASKED for sample in range(4)]


def write(rows, model=None, step=3, sampling=HOT, tokens=TOKENS):
    generator = Generator(model or opt(), tokens, 12, None)
    examples = [e for e, _ in rows]
    return [w.text for w in generator.write(examples, Draws(sampling, step, [s for _, s in rows]))]


@pytest.mark.parametrize("make", [opt, t5])
def test_a_batch_writes_what_each_sample_alone_does(make):
    model = make()
    together = write(ROWS, model)
    assert together == [write([row], model)[0] for row in ROWS]
    assert together == write(ROWS[::-1], model)[::-1]
    assert len({*together}) > len(ROWS) // 2
    generator = Generator(model, TOKENS, 12, None)
    generator.check(ASKED)
    assert generator.alone is False


LAYERS = ["linear_attention", "full_attention"]
ALONE = {
    "rwkv": (
        "RwkvForCausalLM",
        {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCABULARY},
    ),
    "minimax": (
        "MiniMaxForCausalLM",
        LLAMA | {"head_dim": 8, "num_local_experts": 2, "layer_types": LAYERS},
    ),
    "bart": ("BartForCausalLM", BART),
}


@pytest.mark.parametrize("name", ALONE)
def test_texts_that_padding_would_change_are_written_one_by_one(name):
    """RWKV reads it, MiniMax sees it once there is a cache, and BART counts positions from it."""
    kind, settings = ALONE[name]
    model = random_model(kind, **settings)
    generator = Generator(model, TOKENS, 12, None)
    generator.check(ASKED)
    said = f"padding changes the scores of {kind}: texts are generated one by one"
    assert generator.notes[0] == said
    assert write(ROWS, model) == [write([row], model)[0] for row in ROWS]
    examples = [e for e, _ in ROWS]
    greedy = [w.text for w in generator.write(examples)]
    assert greedy == [generator.write([e])[0].text for e in examples]


def test_texts_differ_by_seed_step_prompt_and_sample_and_evaluations_by_no_step():
    same = [(ASKED[0], 0), (replace(ASKED[0], row=9), 0), (ASKED[0], 1)]
    model = opt()
    found = [*write(same, model), *write(same[:1], model, step=4)]
    found += write(same[:1], model, sampling=replace(HOT, seed=6))
    found += write(same[:1], model, step=None)
    assert len({*found}) == len(found)
    assert write(same, model) == found[:3]


def test_numbers_are_those_of_philox():
    found = Draws(HOT, 3, [0, 2]).uniforms([7, 8], 9)
    for i, (row, sample) in enumerate(((7, 0), (8, 2))):
        expected = (words(NoiseKey(5, SAMPLING, 3, row), sample, 0, 9) + 0.5) / 2**32
        assert found[i].tolist() == expected.tolist()
    assert 0 < found.min() < found.max() < 1


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 0.8)])
def test_tokens_have_their_probabilities_and_those_beyond_top_p_none(temperature, top_p):
    logits, n = torch.tensor([0.0, 2.0, -1.0, 1.0, 2.0, -torch.inf]), 4000
    uniforms = torch.from_numpy(np.random.default_rng(0).random((n, 1)))
    draw = Draw(Sampling(temperature, top_p, 0), uniforms)
    found = draw(torch.arange(n), 0, logits.expand(n, -1))
    p = (logits / temperature).softmax(-1).double()
    order = p.argsort(descending=True, stable=True)
    kept = order[: int((p[order].cumsum(0) < top_p - 1e-9).sum()) + 1]
    expected = torch.zeros_like(p).scatter(0, kept, p[kept] / p[kept].sum())
    counts = torch.bincount(found, minlength=6)
    assert not counts[expected == 0].any()
    seen = expected > 0
    assert chisquare(counts[seen].numpy(), n * expected[seen].numpy()).pvalue > 1e-3


def test_a_small_change_of_the_weights_changes_few_texts():
    model = opt()
    before = write(ROWS, model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1e-5 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    assert sum(a != b for a, b in zip(before, write(ROWS, model), strict=True)) <= 2


class Recorded:
    """Rates texts by their length, and keeps them."""

    key, names, own, notes = "objective.function", (), (), ()

    def __init__(self):
        self.texts = []

    def start(self, columns):
        pass

    def rate(self, request, rows, together=False):
        self.texts.append(request.texts)
        return Ratings([float(len(t)) for t in request.texts])


@pytest.fixture
def rated(monkeypatch):
    """What rates the texts of every scorer of the test."""
    rated = Recorded()
    monkeypatch.setattr(texts, "MeasureRater", lambda _: rated)
    return rated


def test_texts_that_no_function_rates_have_no_mean(rated, monkeypatch):
    """Neither a step's, where 0 would be better than any penalty, nor an evaluation's."""
    monkeypatch.setattr(rated, "rate", lambda request, *_: Ratings([None] * len(request.texts)))
    scorer = text_scorer(TASK, None, opt(), TOKENS)
    for measure in (lambda: scorer.loss(ASKED), lambda: scorer.evaluate(ASKED, 200)):
        with pytest.raises(TaskError, match=r"objective\.function: returned None for every text"):
            measure()
    scorer.measure_constants(ASKED, ASKED)
    assert scorer.constant is None


def test_a_step_writes_samples_and_all_points_of_a_step_the_same_ones(rated):
    task = replace(TASK, samples=3, temperature=0.8, eval_samples=4, max_new_tokens=6)
    scorer = text_scorer(task, None, opt(), TOKENS, seed=1)
    scorer.begin(1, 10)
    first, second = scorer.loss(ASKED), scorer.loss(ASKED)
    assert first == second == pytest.approx(-np.mean([len(t) for t in rated.texts[0]]))
    assert len(rated.texts[0]) == 3 * len(PROMPTS)
    assert scorer.branches(ASKED, 2) == [first] * 2
    assert rated.texts[2] == rated.texts[0] * 2
    scorer.begin(2, 10)
    assert scorer.loss(ASKED) != first
    assert scorer.tally.texts == 9


def test_an_evaluation_is_greedy_and_pass_at_k_is_the_best_of_k_drawn_ones(rated):
    greedy = text_scorer(TASK, None, opt(), TOKENS)
    task = replace(TASK, temperature=1.5, eval_samples=4)
    drawn = text_scorer(task, None, opt(), TOKENS, seed=1)
    found = []
    for scorer in (greedy, drawn):
        scorer.begin(5, 10)
        found.append(scorer.evaluate(ASKED, 40))
    assert found[0].value == found[1].value
    assert found[0].more == {}
    written = sum(map(len, rated.texts))
    assert found[1].more["pass@4"] > found[1].value
    drawn.begin(6, 10)
    assert drawn.evaluate(ASKED, 1000).more == found[1].more, "of any batches and at any step"
    assert written == (1 + 5) * len(PROMPTS)
    assert isinstance(drawn, TextScorer)
