"""Objectives without a gradient, generated texts, and encoder-decoder models, on random models of 2 layers."""

import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, f1_score

from tests.support.tiny_models import opt, t5, tokenizer
from tests.tasks.test_task_data import from_yaml
from zo.lm.encoder_decoder import EncoderDecoderScorer
from zo.lm.generation import Generator
from zo.lm.objectives import MetricScorer, text_scorer
from zo.tasks import Encoded, Example, TaskConfig, TaskError, load_splits, tokenize
from zo.tasks.measures import NAMED, exact_match, f1, rouge_l

TOKENS = tokenizer()
TOKENS.pad_token = TOKENS.eos_token
PROMPTS = ["the film was", "the plot", "a story that it was good to see , and"]


def asked(n=3):
    ids = TOKENS(PROMPTS[:n])["input_ids"]
    return [
        Encoded(x, [], 0, prompt=p, references=("the plot",), row=i)
        for i, (x, p) in enumerate(zip(ids, PROMPTS, strict=False))
    ]


def test_a_batch_writes_what_each_prompt_alone_does_up_to_the_stop():
    write = Generator(opt(), TOKENS, 8, None)
    together = write(asked())
    assert together == [write([e])[0] for e in asked()] == write(asked())
    assert len(set(together)) > 1
    stop = together[0][len(together[0]) // 2]
    stopped = Generator(opt(), TOKENS, 8, stop)(asked(1))[0]
    assert stopped == together[0].partition(stop)[0]


def test_measures_are_those_of_squad_and_rouge():
    assert exact_match("The Plot!", "a plot") == exact_match("an  end", "END.") == 1
    assert f1("the red plot", "plot of it") == pytest.approx(2 * 1 / 5)
    assert f1("", "plot") == 0
    assert rouge_l("a b d", "a b c d") == pytest.approx(2 * 3 / 7)
    for name, better in (("perplexity", [True, False, False]), ("f1", [False, False, True])):
        assert [NAMED[name].better(value, 0.5) for value in (0.4, 0.5, 0.6)] == better


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


def rewards(tmp_path, body):
    file = tmp_path / "rules.py"
    file.write_text(f"def score(prompts, texts):\n    {body}\n")
    return f"{file}:score"


def test_texts_are_rated_by_the_tasks_measure_or_by_a_reward_that_sees_them_with_their_prompts(
    tmp_path,
):
    assert text_scorer(TASK, None, opt(), TOKENS).evaluate(asked(), 200).measure.name == "f1"
    function = rewards(tmp_path, "return [len(p) + 100 * len(t) for p, t in zip(prompts, texts)]")
    model = opt()
    written = Generator(model, TOKENS, 6, None)(asked())
    expected = [len(p) + 100 * len(t) for p, t in zip(PROMPTS, written, strict=True)]
    scorer = text_scorer(TASK, function, model, TOKENS)
    found = scorer.evaluate(asked(), 200)
    assert found.value == pytest.approx(sum(expected) / 3)
    assert found.measure.name == "reward"
    assert scorer.loss(asked()) == found.loss == -found.value != 0


FAILING = {
    "return [1 / (len(p) - 8) for p in prompts]": r"ZeroDivisionError: .* \(row 1\)",
    "return [1.0]": r"returns 1 numbers for 3 texts",
    "return ['good'] * len(texts)": r"returns 'good' for row 0; a finite number",
    "return [0, 0, float('nan')]": r"returns nan for row 2",
    "pass": r"TypeError: 'NoneType' object is not iterable",
    "no_such_module:score": "No module named 'no_such_module'",
    "json:score": "json has no function score",
    "/nowhere/rules.py:score": "No such file",
}


@pytest.mark.parametrize("function", FAILING)
def test_a_reward_that_fails_or_is_not_there_is_one_sentence(function, tmp_path):
    address = function if function.endswith(":score") else rewards(tmp_path, function)
    with pytest.raises(TaskError, match=r"^objective\.function: .*" + FAILING[function]):
        text_scorer(TASK, address, opt(), TOKENS).check(asked())


def test_a_prompt_that_leaves_no_room_to_write_is_named():
    long = Encoded([5] * 60, [], 0, row=7)
    with pytest.raises(
        TaskError, match=r"task\.max_new_tokens=6: row 7 has 60 prompt tokens, .* sees 64"
    ):
        text_scorer(TASK, None, opt(), TOKENS).check([long])


def test_an_encoder_decoder_scores_each_candidate_as_alone_and_unpadded():
    model = t5()
    examples = [
        Encoded([5, 6, 7], [[8, 2], [9, 10, 2]], 0),
        Encoded([5, 6, 7, 8, 9], [[11, 2], [12, 2]], 1),
    ]
    scorer = EncoderDecoderScorer(model, 1, kind="encoder-decoder")
    scorer.check(examples)
    scores = scorer.scores(scorer.collate(examples))
    for example, row in zip(examples, scores, strict=True):
        for ids, score in zip(example.candidate_ids, row, strict=True):
            loss = model(
                input_ids=torch.tensor([example.prompt_ids]), labels=torch.tensor([ids])
            ).loss
            assert score.item() == pytest.approx(-loss.item(), abs=1e-5)
    batch = scorer.collate(examples)
    assert scorer.loss(batch) == pytest.approx(F.cross_entropy(scores, torch.tensor([0, 1])).item())
    assert scorer.branches(batch, 2) == pytest.approx([scorer.loss(batch)] * 2)


def test_an_encoder_decoder_reads_prompt_and_completion_apart():
    task = TaskConfig(name="own", path="x", kind="completion", prompt="{a}", completion="{b}")
    (found,) = tokenize(
        task, TOKENS, [Example({"a": "the film", "b": " was"}, 0)], "encoder-decoder"
    )
    assert found.prompt_ids == TOKENS("the film")["input_ids"]
    assert found.candidate_ids == [TOKENS(text_target="was")["input_ids"]]


ROWS = {
    "squad": {
        "title": "Town", "context": "It is old.", "question": " How old? ",
        "answers": {"text": ["very old", "old"], "answer_start": [0, 0]},
    },
    "drop": {
        "passage": "It is old.", "question": "How old?",
        "answers_spans": {"spans": ["very old", "old"], "types": ["span", "span"]},
    },
    "record": {
        "passage": "A town.\n@highlight\nIt is old", "query": "People like @placeholder .",
        "entities": ["Rome", "Oslo", "Bern"], "answers": ["Oslo", "Bern"],
    },
}  # fmt: skip
PROMPT = {
    "squad": "Title: Town\nContext: It is old.\nQuestion: How old?\nAnswer:",
    "drop": "Passage: It is old.\nQuestion: How old?\nAnswer:",
    "record": "A town.\n- It is old\n-",
}


@pytest.mark.parametrize("name", ROWS)
def test_tasks_of_the_mezo_line_are_asked_in_its_form(name, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text((json.dumps(ROWS[name]) + "\n") * 8)
    changes = {"revision": None, "data_dir": None}
    sizes = {"train_size": 4, "validation_size": 2, "test_size": 2, "test_split": None}
    task = from_yaml(name, path=str(file), **sizes, **changes)
    splits = load_splits(task)
    found = tokenize(task, TOKENS, splits.train, "decoder")[0]
    assert TOKENS.decode(found.prompt_ids[1:]) == PROMPT[name]
    texts = [TOKENS.decode(ids) for ids in found.candidate_ids]
    if name == "record":
        assert texts == [f" People like {entity} ." for entity in ("Rome", "Oslo", "Bern")]
        assert (found.label, found.accepted) == (1, (1, 2))
    else:
        assert texts == [" very old\n"]
        assert found.references == ("very old", "old")
