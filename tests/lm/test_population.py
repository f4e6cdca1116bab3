"""Texts of a whole population from one batch: those that each member writes alone."""

from functools import partial
from unittest import mock

import pytest
import torch

from tests.lm.test_objectives import ASKED, TOKENS
from tests.support.tiny_models import DECODERS, UNUSUAL, kind_of, llama, opt, t5
from zo.lm.scoring import generation
from zo.lm.scoring.decoding import Decoder, can_decode, needed
from zo.lm.scoring.generation import Generator
from zo.lm.scoring.sampling import Draws, Sampling
from zo.lm.scoring.texts import Decoding, TextScorer
from zo.optim import OPTIMIZERS
from zo.rewards.tally import Ratings
from zo.run.losses import BatchLoss
from zo.weights.restore import RestoreError
from zo.weights.space import ParameterSpace

SAMPLING = Sampling(temperature=1.0, top_p=0.9, seed=7)
WRITERS = {k: make for k, make in (DECODERS | UNUSUAL).items() if kind_of(make()) == "decoder"}
DROPPING = {name for name, make in WRITERS.items() if can_decode(make())}


class Numbers:
    """Rates texts by a number of their letters, and those with a multiple of 31 not at all."""

    key, names, own, notes = "objective.function", [], [], []

    def __init__(self):
        self.written = []

    def rate(self, request, rows, together=False):
        self.written.extend(request.texts)
        numbers = [sum(map(ord, text)) % 97 for text in request.texts]
        return Ratings([float(x) if x % 31 else None for x in numbers])


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("name", sorted(DROPPING))
def test_rows_that_end_are_dropped_and_every_text_is_that_of_generate(name, drawn, monkeypatch):
    """Ends of about every third token, so that rows end one after another."""
    model, ends = WRITERS[name](), list(range(2, VOCABULARY := 300, 3))
    model.generation_config.eos_token_id = ends
    write, passed = Generator(model, TOKENS, 12, None), []
    write.check(ASKED)
    model.register_forward_pre_hook(
        lambda _, __, given: passed.append(len(given["input_ids"])), with_kwargs=True
    )
    draws = Draws(SAMPLING, 3, [i for i in range(4) for _ in ASKED]) if drawn else None
    found = write.write(ASKED * 4, draws)
    assert passed[0] == 12
    assert passed[-1] < 12 or len(passed) < 12  # or all at once
    monkeypatch.setattr(generation, "can_decode", lambda _: False)
    assert found == Generator(model, TOKENS, 12, None).write(ASKED * 4, draws)
    assert len({text.text for text in found}) > 1
    assert model.config.get_text_config().vocab_size == VOCABULARY


def test_models_whose_cache_is_of_another_kind_are_left_to_generate():
    assert {*DECODERS, "gemma 2", "gpt-oss", "a sliding window"} <= DROPPING
    assert not DROPPING & {"no attention", "convolutions"}
    assert not can_decode(t5())


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_rows_that_are_left_are_as_many_of_each_branch_and_all_that_have_not_ended(parts):
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        done = torch.rand(parts * 6, generator=generator) < 0.7
        kept = needed(done, parts)
        most = int((~done).view(parts, -1).sum(1).max())
        if kept is None:
            assert most > 4
            continue
        assert (
            kept.div(6, rounding_mode="floor").bincount(minlength=parts).tolist() == [most] * parts
        )
        assert set((~done).nonzero().flatten().tolist()) <= set(kept.tolist())
        assert kept.tolist() == sorted(set(kept.tolist()))


def population(make, restore, budget=float("inf"), decoding=None, **settings):
    """Returns what three steps of ES measure and write on rewards of texts, and how many rows passes had."""
    model, rater, passes = make(), Numbers(), []
    method = OPTIMIZERS[settings.pop("method", "es")]
    es = {"directions": "low_rank"} if method is OPTIMIZERS["es"] else {}
    settings = {"n": 8, "eps": 0.05, **es, **settings}
    write = Generator(model, TOKENS, 10, None)
    scorer = TextScorer(write, rater, "reward", decoding=decoding)
    params = ParameterSpace.of(model, restore)
    params.policy.branch_budget = budget
    opt = method.optimizer(params, method.config(**settings), lr=0.02, seed=4)
    decode, infos = Decoder.__call__, []

    def counted(of, ids, *given, **more):
        passes.append(len(ids))
        return decode(of, ids, *given, **more)

    with mock.patch.object(Decoder, "__call__", counted):
        for step in range(1, 4):
            scorer.begin(step, 3)
            infos.append(opt.step(BatchLoss(scorer, ASKED, params)))
    return [info.losses for info in infos], rater.written, passes


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (opt, {}),
        (llama, {"rank": 2, "shaping": "ranks"}),
        (DECODERS["mistral"], {"mirrored": False, "n": 5}),
        (DECODERS["gpt2"], {}),
        (UNUSUAL["gemma 2"], {"eps": 0.5}),
        (UNUSUAL["gpt-j"], {}),
        (partial(opt, tie_word_embeddings=False), {"rank": 3}),
        (llama, {"method": "lozo", "n": 4, "interval": 2}),  # directions share a right factor
    ],
)
def test_a_population_in_one_batch_writes_what_its_members_write_alone(make, settings):
    losses, texts, rows = population(make, "factors", **settings)
    alone, each, _ = population(make, "snapshot", **settings)
    assert texts == each
    assert losses == alone
    assert len({*texts}) >= 8
    members = settings.get("n", 8) * (2 if "method" in settings else 1)
    assert rows == [3 * members] * 3
    assert len(losses[0]) == members


@pytest.mark.parametrize("samples", [1, 3])
def test_any_budget_writes_the_same_texts_and_keeps_pairs_together(samples):
    """Greedy texts, and several that are drawn for each prompt."""
    decoding = Decoding(SAMPLING, samples) if samples > 1 else None
    whole, texts, rows = population(llama, "factors", decoding=decoding)
    with pytest.raises(RestoreError, match=r"precision\.branch_gib=") as error:
        population(llama, "factors", 1.0, decoding)
    pair = float(str(error.value).partition("at least ")[2].split(",")[0]) * 2**30 * 1.01
    for budget, expected in ((pair, [6] * 4), (2 * pair, [12, 12]), (3 * pair, [18, 6])):
        found = population(llama, "factors", budget, decoding)
        assert found == (whole, texts, [samples * rows for rows in expected] * 3)
    assert rows == [24 * samples] * 3
    assert (whole, texts) == population(llama, "snapshot", decoding=decoding)[:2]
