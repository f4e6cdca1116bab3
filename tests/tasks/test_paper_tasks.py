"""The paper's tasks: its prompts to the letter, the hub's labels, and Table 6's sizes."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from tests.support import hub_copies
from tests.support.tiny_models import tokenizer
from zo.tasks import TaskConfig, TaskError, encode, encode_masked, load_splits, render
from zo.tasks.templates import fill

CONF = Path(__file__).parents[2] / "conf" / "task"
PARTS = {n: n for n in ("rte", "cb", "copa", "wic", "boolq")} | {"wsc": "wsc.fixed"}
TABLE_6 = {
    "sst2": (1000, 500),
    "boolq": (1000, 500),
    "rte": (1000, 500),
    "copa": (300, 100),
    "wic": (1000, 500),
    "wsc": (450, 100),
    "cb": (200, 50),
    "trec": (1000, 500),
}
NAMES = sorted(TABLE_6)


def from_yaml(name, **changes):
    values = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
    del values["defaults"]
    return TaskConfig(**values | changes)


def copy_of(name, root):
    if name == "sst2":
        return hub_copies.sst2(root)
    return hub_copies.trec(root) if name == "trec" else hub_copies.super_glue(root, PARTS[name])


def small(name, tmp_path, **changes):
    sizes = {"train_size": 12, "validation_size": 6, "split_order": "first"}
    return from_yaml(name, path=str(copy_of(name, tmp_path / "copy")), **sizes | changes)


YES_NO, NO_YES = (["Yes", "No"], ["No", "Yes"])
FIRST = {  # row 0 of each copy: its prompt, its answers and the true one
    "sst2": (
        "sentence number 0 is made up It was",
        [" terrible", " great"],
        " terrible",
        "sentence number 0 is made up It was <mask> .",
        [" bad", " great"],
    ),
    "rte": (
        'Town 0 lies in Spain.\nDoes this mean that "0 is a town." is true? Yes or No?\n',
        YES_NO,
        "Yes",
        "Town 0 lies in Spain. ? <mask> , 0 is a town.",
        [" Yes", " No"],
    ),
    "cb": (
        'Suppose B: Is 0 odd? A: I think so. Can we infer that "0 is odd"? Yes, No, or Maybe?\n',
        ["Yes", "No", "Maybe"],
        "Yes",
        "B: Is 0 odd? A: I think so. ? <mask> , 0 is odd",
        [" Yes", " No", " Maybe"],
    ),
    "copa": (
        "Ship 0 sank because",
        [" the wind blew 0 times.", " I sold it."],
        " the wind blew 0 times.",
        None,
        None,
    ),
    "wic": (
        'Does the word "bank" have the same meaning in these two sentences? Yes, No?\n'
        "Bank 0 lent money .\nWe sat on the bank 0 times .\n",
        NO_YES,
        "No",
        'Bank 0 lent money . We sat on the bank 0 times . Does the word "bank" have the same'
        " meaning? <mask> .",
        [" No", " Yes"],
    ),
    "wsc": (
        "Ann thanked Eve 0 times because She had helped.\n"
        'In the previous sentence, does the pronoun "she" refer to Eve? Yes or No?\n',
        NO_YES,
        "No",
        None,
        None,
    ),
    "boolq": (
        "Numbers -- 0 is one. Is 0 a number?\n",
        YES_NO,
        "No",
        "Numbers -- 0 is one. Is 0 a number? <mask> .",
        [" Yes", " No"],
    ),
    "trec": (
        "Question: What is thing 0 ?\nType:",
        [" Abbreviation", " Entity", " Description", " Human", " Location", " Number"],
        " Description",
        "What is thing 0 ? This is a <mask> question.",
        [" short", " thing", " what", " who", " where", " how"],
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_prompts_and_answers_are_those_of_the_paper_to_the_letter(name, tmp_path):
    task = small(name, tmp_path)
    example = load_splits(task).train[0]
    prompt, answers, true, masked_prompt, words = FIRST[name]
    assert render(task, example) == prompt
    assert [fill(c, example.fields, "candidates") for c in task.candidates] == answers
    assert answers[example.label] == true
    assert task.label_words == words
    if masked_prompt is None:
        assert task.masked_prompt is None
    else:
        assert fill(task.masked_prompt, example.fields, "masked_prompt") == masked_prompt
    assert task.objective == ("lm" if name == "copa" else "classification")


TRUE = {  # the true answers of rows 0, 1, 2, ... as the hub numbers them
    "sst2": [" terrible", " great"],
    "rte": ["Yes", "No"],
    "cb": ["Yes", "No", "Maybe"],
    "copa": [" {choice1:continued}", " {choice2:continued}"],
    "wic": ["No", "Yes"],
    "wsc": ["No", "Yes"],
    "boolq": ["No", "Yes"],
    "trec": [" Description", " Entity", " Abbreviation", " Human", " Number", " Location"],
}


@pytest.mark.parametrize("name", NAMES)
def test_every_label_of_the_hub_is_the_right_answer(name, tmp_path):
    task = small(name, tmp_path)
    found = [task.candidates[e.label] for e in load_splits(task).train]
    assert found == [TRUE[name][i % len(TRUE[name])] for i in range(12)]


@pytest.mark.parametrize("name", NAMES)
def test_the_original_validation_split_is_the_test_set_and_trecs_is_its_own(name, tmp_path):
    task = small(name, tmp_path)
    splits = load_splits(task)
    assert (len(splits.train), len(splits.validation)) == (12, 6)
    assert len(splits.test) == (10 if name == "sst2" else 12)
    assert task.test_split == ("test" if name == "trec" else "validation")


def test_copa_asks_for_a_cause_or_an_effect(tmp_path):
    task = small("copa", tmp_path)
    prompts = [render(task, example) for example in load_splits(task).train[:3]]
    assert prompts == ["Ship 0 sank because", "Ship 1 sank because", "Ship 2 sank so"]


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_those_of_table_6_and_a_smaller_copy_is_refused(name, tmp_path):
    task = small(name, tmp_path)
    committed = from_yaml(name)
    assert (committed.train_size, committed.validation_size) == TABLE_6[name]
    sizes = {"train_size": committed.train_size, "validation_size": committed.validation_size}
    with pytest.raises(TaskError, match=r"^task\.train_size \+ task\.validation_size: .* has"):
        load_splits(dataclasses.replace(task, **sizes))


@pytest.mark.parametrize("name", NAMES)
def test_examples_become_tokens_for_the_models_that_the_task_is_for(name, tmp_path):
    task = small(name, tmp_path, max_length=200)
    examples = load_splits(task).test
    plain = tokenizer()
    for encoded, example in zip(encode(task, plain, examples), examples, strict=True):
        text = render(task, example)
        assert plain.decode(encoded.prompt_ids[1:]) == text
        for ids, candidate in zip(encoded.candidate_ids, task.candidates, strict=True):
            assert plain.decode(ids) == fill(candidate, example.fields, "candidates")
    if task.masked_prompt is None:
        with pytest.raises(TaskError, match=rf"^task\.masked_prompt: {name} has none"):
            encode_masked(task, tokenizer(mask="<mask>"), examples)


@pytest.mark.parametrize("name", sorted({"trec", "copa", "wsc"}))
def test_a_column_that_the_data_lack_is_named_with_its_template(name, tmp_path):
    task = small(name, tmp_path, candidates=["a {nothing}", *from_yaml(name).candidates[1:]])
    with pytest.raises(TaskError, match=r"^task\.candidates: the data have no column 'nothing'"):
        load_splits(task)


def test_a_label_that_no_candidate_has_is_named(tmp_path):
    labels = ["ABBR", "ENTY", "DESC", "HUM", "LOC", "OTHER"]
    with pytest.raises(TaskError, match=r"^task\.labels: row 4 has the .* 'NUM', .* none of 'ABB"):
        load_splits(small("trec", tmp_path, labels=labels))


def test_a_boolean_column_is_mapped_as_it_is(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"q": "a", "answer": true}\n{"q": "b", "answer": false}\n' * 10)
    changes = {"path": "json", "data_files": {"train": str(file)}, "data_dir": None}
    changes |= {"revision": None, "test_split": None, "train_size": 12, "validation_size": 4}
    changes |= {"test_size": 4, "label_field": "answer", "labels": [True, False]}
    task = from_yaml("boolq", **changes, prompt="{q}", masked_prompt="{q} <mask>")
    found = {(e.fields["q"], task.candidates[e.label]) for e in load_splits(task).train}
    assert found == {("a", "Yes"), ("b", "No")}


def test_a_hub_out_of_reach_names_the_revision_to_download(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(TaskError) as caught:
        load_splits(from_yaml("wsc"))
    message = str(caught.value)
    assert message.startswith("task.path: split 'train' of aps/super_glue (wsc.fixed) cannot be")
    command = "hf download --repo-type dataset aps/super_glue --revision 3de24cf8022e94f4ee4b9d55a6f539891524d646"
    assert f"`{command} --local-dir super_glue` brings a copy" in message
