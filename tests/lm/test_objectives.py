"""Objectives without a gradient, generated texts, encoder-decoder models, and baselines that make no step."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rouge_score.rouge_scorer import RougeScorer
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
)

from tests.support.tiny_models import (
    BART,
    LLAMA,
    T5,
    VOCABULARY,
    examples_of,
    opt,
    random_model,
    t5,
    tokenizer,
)
from zo.lm.baselines import ICLConfig, LinearProbeConfig
from zo.lm.objectives import MetricScorer
from zo.lm.scoring.baselines import Given, InContext, LinearProbe
from zo.lm.scoring.candidates import CandidateScorer
from zo.lm.scoring.encoder_decoder import EncoderDecoderScorer
from zo.lm.scoring.generation import Generator
from zo.lm.scoring.texts import text_scorer
from zo.tasks import Encoded, Example, TaskConfig, TaskError, encode, tokenize
from zo.tasks.measures import NAMED, exact_match, f1, rouge_l
from zo.tasks.objective import ObjectiveConfig
from zo.tasks.predictions import Confusion

TOKENS = tokenizer()
TOKENS.pad_token = TOKENS.eos_token
PROMPTS = ["the film was", "the plot", "a story that it was good to see , and"]


ASKED = [
    Encoded(TOKENS(text)["input_ids"], [], 0, prompt=text, references=("the plot",), row=row)
    for row, text in enumerate(PROMPTS)
]


def texts_of(model, tokens, examples=ASKED[:1], stop=None):
    return [of.text for of in Generator(model, TOKENS, tokens, stop).write(examples)]


def test_a_batch_writes_what_each_prompt_alone_does_up_to_the_stop():
    write = partial(texts_of, opt(), 8)
    together = write(ASKED)
    assert together == [write([e])[0] for e in ASKED] == write(ASKED)
    assert len(set(together)) > 1


def test_writing_ends_at_the_whole_stop_and_at_the_models_own_ends():
    """Also where the stop's last token comes before it, and where a prompt ends with its first."""
    model, passes = opt(), []
    model.register_forward_hook(lambda *_: passes.append(1))
    text, n = texts_of(model, 24)[0], len(passes)
    for begin in range(12):
        for stop in (text[begin : begin + 3], PROMPTS[0][-1] + text[begin : begin + 2]):
            passes.clear()
            (stopped,) = texts_of(model, 24, stop=stop)
            assert stopped == text.partition(stop)[0]
            assert len(passes) < n or stop not in text[:9]
    model.generation_config.eos_token_id = [
        299,
        *TOKENS(text[0], add_special_tokens=False)["input_ids"],
    ]
    assert texts_of(model, 24) == [text[0]]


@pytest.mark.parametrize("before_it", [0, 1], ids=["is one", "ends with one"])
def test_a_stop_that_is_or_holds_a_special_token_ends_a_text(before_it):
    """Although texts are decoded without such tokens."""
    model, tokens = opt(vocab_size=VOCABULARY + 1), tokenizer()
    tokens.pad_token = tokens.eos_token
    before = Generator(model, tokens, 12, None).write(ASKED[:1])[0].ids
    old, at = next((of, i) for i, of in enumerate(before) if i and of not in before[:i])
    tokens.add_special_tokens({"additional_special_tokens": ["<end>"]})
    new = tokens.convert_tokens_to_ids("<end>")
    tables = {model.get_input_embeddings().weight, model.get_output_embeddings().weight}
    with torch.no_grad():  # the model writes <end> where it wrote the old token
        for table in tables:
            table[[old, new]] = table[[new, old]]
    stop = tokens.decode([*before[at - 1 : at][:before_it], new])
    (text,) = Generator(model, tokens, 12, stop).write(ASKED[:1])
    assert text.ids == [*before[:at], new]
    assert text.text == tokens.decode(before[: at - before_it])
    assert not text.truncated
    scorer = text_scorer(
        TASK, ObjectiveConfig("reward", functions={"exact_match": 1.0}), model, tokens
    )
    assert (
        "rewards see texts without special tokens (<unk>, <pad>, <end>); completion_ids has them"
        in scorer.notes
    )


@pytest.mark.parametrize("make", [opt, t5])
def test_what_a_models_generation_config_forbids_is_written_by_none(make):
    """By decoders and by pairs of encoder and decoder alike."""
    model = make()
    usual = Generator(model, TOKENS, 6, None)
    first = usual.write(ASKED[:1])[0].ids[0]
    assert not usual.notes
    model.generation_config.suppress_tokens = [first]
    write = Generator(model, TOKENS, 6, None)
    assert all(first not in text.ids for text in write.write(ASKED))
    assert "with suppress_tokens of the model's generation_config" in write.notes[-1]


def test_measures_are_those_of_squad_and_rouge():
    assert exact_match("The Plot!", "a plot") == exact_match("an  end", "END.") == 1
    assert f1("the red plot", "plot of it") == pytest.approx(2 * 1 / 5)
    assert f1("", "plot") == 0
    assert (
        exact_match("The A", "a")
        == exact_match("", "A")
        == exact_match(">", "<")
        == f1("", "the")
        == 0
    )
    assert rouge_l("a b d", "a b c d") == pytest.approx(2 * 3 / 7)
    plain = RougeScorer(["rougeL"], use_stemmer=True)
    texts = "Running_dogs' 3 PLAYED nicely-done", "a dog runs, plays 3 nice games"
    assert rouge_l(*texts) == plain.score(*texts)["rougeL"].fmeasure > 0
    assert rouge_l("хороший фильм", "хороший") == pytest.approx(2 / 3)
    assert rouge_l("Größe", "Grüße") == 0
    assert rouge_l("好电影", "电影好") == pytest.approx(2 / 3)
    for name, better in (("perplexity", [True, False, False]), ("f1", [False, False, True])):
        assert [NAMED[name].better(value, 0.5) for value in (0.4, 0.5, 0.6)] == better


@pytest.mark.parametrize("true", [range(4), range(3)])
def test_f1_and_balanced_accuracy_are_those_of_scikit_learn(true):
    """Of five classes, one without examples and predictions; and one that is predicted alone."""
    draws = np.random.default_rng(0)
    labels, predictions = draws.choice(true, 200).tolist(), draws.integers(4, size=200).tolist()
    found = Confusion.of(labels, predictions, 5)
    assert found.counts == confusion_matrix(labels, predictions, labels=range(5)).tolist()
    assert found.f1[:4] == pytest.approx(f1_score(labels, predictions, average=None))
    assert found.f1[4] is None
    assert found.macro_f1 == pytest.approx(f1_score(labels, predictions, average="macro"))
    recall = balanced_accuracy_score(labels, predictions) if len(true) == 4 else None
    expected = [found.counts[i][i] / sum(found.counts[i]) for i in true]
    assert found.balanced_accuracy == pytest.approx(recall or sum(expected) / len(expected))


@pytest.mark.parametrize("metric", ["accuracy", "f1"])
def test_a_metric_is_negated_and_counts_right_predictions(metric):
    examples = [Encoded([2, 5 + i], [[7], [8]], i % 2) for i in range(6)]
    model = opt()
    scorer = MetricScorer(model, 1, "float32", "decoder", "classification", metric=metric)
    batch = scorer.collate(examples)
    predictions = scorer.scores(batch).argmax(-1).tolist()
    labels = [e.label for e in examples]
    by_sklearn = {"accuracy": accuracy_score, "f1": partial(f1_score, average="macro")}[metric]
    assert scorer.loss(batch) == pytest.approx(-by_sklearn(labels, predictions))
    assert scorer.branches(batch, 2) == [scorer.loss(batch)] * 2


TASK = TaskConfig(name="own", path="x", kind="completion", max_new_tokens=6)


def rewards(tmp_path, body, **settings):
    """Returns an objective whose function has this body."""
    file = tmp_path / "rules.py"
    file.write_text(f"def score(prompts, texts):\n    {body}\n")
    return ObjectiveConfig("reward", function=f"{file}:score", workers=1, **settings)


@pytest.mark.process
def test_texts_are_rated_by_the_tasks_measure_or_by_a_reward_that_sees_them_with_their_prompts(
    tmp_path,
):
    assert text_scorer(TASK, None, opt(), TOKENS).evaluate(ASKED, 200).measure.name == "f1"
    function = rewards(tmp_path, "return [len(p) + 100 * len(t) for p, t in zip(prompts, texts)]")
    model = opt()
    written = texts_of(model, 6, ASKED)
    expected = [len(p) + 100 * len(t) for p, t in zip(PROMPTS, written, strict=True)]
    scorer = text_scorer(TASK, function, model, TOKENS)
    found = scorer.evaluate(ASKED, 200)
    assert (found.value, found.measure.name) == (pytest.approx(sum(expected) / 3), "reward")
    assert scorer.loss(ASKED) == found.loss == -found.value != 0


@pytest.mark.process
def test_a_function_of_trls_own_rates_conversations_and_columns_reach_one(tmp_path):
    pytest.importorskip("trl")
    (tmp_path / "rules.py").write_text(
        "def said(prompts, completions, wanted, **_):\n"
        "    assert all(c[0]['role'] == 'assistant' for c in completions)\n"
        "    return [w + (p[0]['content'] == 'hello') for p, w in zip(prompts, wanted)]\n"
    )
    functions = {"trl.rewards:think_format_reward": 5.0, f"{tmp_path}/rules.py:said": 1.0}
    chats = [
        replace(e, messages=[{"role": "user", "content": "hello"}], columns={"wanted": i})
        for i, e in enumerate(ASKED)
    ]
    scorer = text_scorer(TASK, ObjectiveConfig("reward", functions=functions), opt(), TOKENS)
    scorer.check(chats)
    found = scorer.evaluate(chats, 200)
    assert found.value == 1 + (0 + 1 + 2) / 3
    assert found.more == {"rewards/think_format_reward": 0, "rewards/said": 2}


@pytest.mark.process
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import random; return [random.random() for t in texts]", "two calls for the same text"),
        ("import json; return [json.loads('{') for t in texts]", r"rules\.py:2: JSONDecodeError"),
        ("return [len(texts)] * len(texts)", r"a text among others and alone got 3\.0 and 1\.0"),
        ("return [1 / (len(p) - 8) for p in prompts]", r"ZeroDivisionError: .* \(row 1\)"),
        ("return [0, 0, float('nan')][-len(texts) :]", r"returns nan; .* \(row 2\)"),
    ],
)
def test_a_reward_that_draws_or_raises_is_refused_with_its_place(tmp_path, body, said):
    with pytest.raises(TaskError, match=said):
        text_scorer(TASK, rewards(tmp_path, body), opt(), TOKENS).check(ASKED)


GEMMA = LLAMA | {"head_dim": 8, "initializer_range": 0.3}
SPARSE = {f"num_sparse_{part}_layers": 1 for part in ("encoder", "decoder")} | {"num_experts": 2}
NLLB = BART | {f"{part}_sparse_step": 2 for part in ("encoder", "decoder")} | {"num_experts": 4}
PROPHET = {"hidden_size": 32, "vocab_size": VOCABULARY, "max_position_embeddings": 64}
PROPHET |= {
    f"num_{part}_{what}": 2
    for part in ("encoder", "decoder")
    for what in ("layers", "attention_heads")
}
PAIRS = {
    "T5": T5,
    "T5Gemma": {"encoder": GEMMA, "decoder": GEMMA, "vocab_size": VOCABULARY},
    "SwitchTransformers": T5 | SPARSE,
    "NllbMoe": NLLB,
    "ProphetNet": PROPHET,
}


@pytest.mark.parametrize("name", PAIRS)
def test_an_encoder_decoder_scores_each_candidate_as_alone_and_unpadded(name):
    given = {"pad_token_id": 1, **PAIRS[name]}
    if name != "T5Gemma":  # which begins with its decoder's first token
        given |= {"decoder_start_token_id": 1}
    model = random_model(f"{name}ForConditionalGeneration", **given)
    examples = examples_of([2, 3], (3, 5))
    scorer = EncoderDecoderScorer(model, 1, kind="encoder-decoder")
    scorer.check(examples)
    assert scorer.apart == (name == "ProphetNet"), "whose n-grams see padding behind a candidate"
    batch = scorer.collate(examples)
    scores = scorer.scores(batch)
    for example, row in zip(examples, scores, strict=True):
        for ids, score in zip(example.candidate_ids, row, strict=True):
            given = {"input_ids": [example.prompt_ids], "labels": [ids]}
            logits = model(**{key: torch.tensor(of) for key, of in given.items()}).logits
            loss = F.cross_entropy(logits[0].float(), torch.tensor(ids))
            assert score.item() == pytest.approx(-loss.item(), abs=1e-5)
    assert scorer.loss(batch) == pytest.approx(F.cross_entropy(scores, torch.tensor([0, 1])).item())
    assert scorer.branches(batch, 2) == pytest.approx([scorer.loss(batch)] * 2)


def test_an_encoder_decoder_reads_prompt_and_completion_apart():
    task, example = replace(TASK, prompt="{a}", completion="{b}"), {"a": "the film", "b": " was"}
    (found,) = tokenize(task, TOKENS, [Example(example, 0)], "encoder-decoder")
    assert found.prompt_ids == TOKENS("the film")["input_ids"]
    assert found.candidate_ids == [TOKENS(text_target="was")["input_ids"]]


REVIEWS = ("the film was good", "the plot was terrible", "a story", "it wasn't the best film")
REVIEWED = TaskConfig(name="x", prompt="{text} It was", candidates=[" bad", " good"], max_length=60)


def test_demonstrations_are_whole_texts_behind_one_beginning_drawn_by_the_seed_alone():
    examples = [Example({"text": text}, i % 2) for i, text in enumerate([*REVIEWS, "to see"])]
    *train, own = encode(REVIEWED, TOKENS, examples)
    scorer = CandidateScorer(opt(max_position_embeddings=300), pad_id=1)

    def in_context(k, seed, separator=" ", train=train, scorer=scorer):
        return InContext(
            ICLConfig(k=k, separator=separator), Given(scorer, train, seed, TOKENS, 200)
        )

    (found,) = in_context(2, 3, "\n\n").shown([own])
    *shown, last = TOKENS.decode(found.prompt_ids).removeprefix("</s>").split("\n\n")
    labelled = {f"{t} It was{REVIEWED.candidates[i % 2]}" for i, t in enumerate(REVIEWS)}
    assert (last, found.candidate_ids) == ("to see It was", own.candidate_ids)
    assert {*shown} < labelled
    assert len({*shown}) == 2

    def prompt(k, seed):
        return in_context(k, seed).shown([own])[0].prompt_ids

    assert prompt(2, 0) == prompt(2, 0)
    assert len({tuple(prompt(2, seed)) for seed in range(6)}) > 1
    assert sorted(prompt(4, 0)) == sorted(prompt(99, 1)), "all, if there are fewer"
    with pytest.raises(TaskError, match=r"^optimizer\.k: "):
        in_context(16, 0, train=train * 4, scorer=CandidateScorer(opt(), pad_id=1)).shown(train)


def test_a_probe_finds_what_the_last_states_know():
    """The last token of a text tells its label, which the candidates' own scores do not.

    Texts are of different lengths, so that batches have them in another order.
    """
    rng = np.random.default_rng(0)
    examples = [
        Encoded([*rng.choice([20, 30], 1 + i % 3).tolist(), 7 + 2 * (i % 2)], [[3], [4]], i % 2)
        for i in range(40)
    ]
    scorer = CandidateScorer(opt(), pad_id=1)
    probe = LinearProbe(LinearProbeConfig(), Given(scorer, examples[:30], 0, TOKENS, 200))
    found = probe.evaluate(examples[30:], 200)
    assert found.value == 1.0
    assert found.predictions == [e.label for e in examples[30:]]
    assert 0 < found.loss < 0.3
    wrong = [Encoded(e.prompt_ids, e.candidate_ids, 1 - e.label) for e in examples[30:]]
    assert probe.evaluate(wrong, 200).value == 0.0
    with pytest.raises(TaskError, match=r"^task\.train_size: "):
        LinearProbe(LinearProbeConfig(), Given(scorer, examples[::2], 0, TOKENS, 200))
