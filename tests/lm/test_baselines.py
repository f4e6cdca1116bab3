"""In-context learning and linear probing, on tiny models."""

import numpy as np
import pytest
import torch

from tests.support.tiny_models import examples_of, llama, opt, tokenizer
from zo.lm.baselines import LinearProbe, with_demonstrations
from zo.lm.scoring import CandidateScorer
from zo.tasks import Encoded, TaskConfig, TaskError, encode
from zo.tasks.data import Example

REVIEWS = ("the film was good", "the plot was terrible", "a story", "it wasn't the best film")
TASK = TaskConfig(name="x", prompt="{text} It was", candidates=[" bad", " good"], max_length=60)


def encoded(texts, tok):
    examples = [Example({"text": text}, i % 2) for i, text in enumerate(texts)]
    return encode(TASK, tok, examples)


def test_demonstrations_are_whole_texts_behind_one_beginning_drawn_by_the_seed_alone():
    tok = tokenizer()
    train, (own, *_) = encoded(REVIEWS, tok), encoded(["to see"], tok)
    scorer = CandidateScorer(opt(max_position_embeddings=300), pad_id=1)
    (found,) = with_demonstrations([own], train, 2, 3, "\n\n", tok, scorer)
    text = tok.decode(found.prompt_ids)
    first, second, last = text.removeprefix("</s>").split("\n\n")
    assert last == "to see It was"
    labelled = {f"{t} It was{TASK.candidates[i % 2]}" for i, t in enumerate(REVIEWS)}
    assert {first, second} < labelled
    assert first != second
    assert text.count("</s>") == 1
    assert found.candidate_ids == own.candidate_ids

    def prompt(k, seed):
        return with_demonstrations([own], train, k, seed, " ", tok, scorer)[0].prompt_ids

    assert prompt(2, 0) == prompt(2, 0)
    assert len({tuple(prompt(2, seed)) for seed in range(6)}) > 1
    assert sorted(prompt(4, 0)) == sorted(prompt(99, 1)), "all, if there are fewer"
    with pytest.raises(TaskError, match=r"^optimizer\.k: with demonstrations \d+ tokens, but the"):
        with_demonstrations(train, train * 4, 16, 0, " ", tok, CandidateScorer(opt(), pad_id=1))


def test_a_probe_finds_what_the_last_states_know():
    """The last token of a text tells its label, which the candidates' own scores do not."""
    rng = np.random.default_rng(0)
    examples = [
        Encoded([*rng.integers(2, 300, 5).tolist(), 7 + 2 * (i % 2)], [[3], [4]], i % 2)
        for i in range(40)
    ]
    scorer = CandidateScorer(opt(), pad_id=1)
    probe = LinearProbe(scorer, examples[:30], 1.0, 200)
    found = probe.evaluate(examples[30:], 200)
    assert found.value == 1.0
    assert found.predictions == [e.label for e in examples[30:]]
    assert 0 < found.loss < 0.3
    wrong = [Encoded(e.prompt_ids, e.candidate_ids, 1 - e.label) for e in examples[30:]]
    assert probe.evaluate(wrong, 200).value == 0.0
    with pytest.raises(TaskError, match=r"^task\.train_size: all training examples are of one"):
        LinearProbe(scorer, examples[::2], 1.0, 200)


def test_features_are_the_last_states_in_the_order_of_the_examples():
    model, examples = llama(), examples_of([1, 1], (7, 2, 19, 7, 2, 6))  # some share a batch
    found = CandidateScorer(model, pad_id=1).features(examples, 30)
    with torch.inference_mode():
        texts = [torch.tensor([e.prompt_ids]) for e in examples]
        expected = torch.stack([model.model(ids).last_hidden_state[0, -1] for ids in texts])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
