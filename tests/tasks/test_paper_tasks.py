"""The paper's tasks: its prompts to the letter, the hub's labels, and Table 6's sizes."""

import pytest

from tests.support import hub_copies
from tests.tasks.test_task_data import from_yaml
from zo.tasks import load_splits, render
from zo.tasks.templates import fill

PARTS = {n: n for n in ("rte", "cb", "copa", "wic", "boolq")} | {"wsc": "wsc.fixed"}
TABLE_6 = dict.fromkeys(("sst2", "boolq", "rte", "wic", "trec"), (1000, 500))
TABLE_6 |= {"copa": (300, 100), "wsc": (450, 100), "cb": (200, 50)}


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


@pytest.mark.parametrize("name", sorted(TABLE_6))
def test_prompts_answers_labels_and_splits_are_those_of_the_paper(name, tmp_path):
    """To the letter; the original validation split is the test set, and TREC has its own."""
    task = small(name, tmp_path)
    splits = load_splits(task)
    example = splits.train[0]
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
    found = [task.candidates[e.label] for e in splits.train]
    assert found == [TRUE[name][i % len(TRUE[name])] for i in range(12)]
    assert (len(splits.train), len(splits.validation)) == (12, 6)
    assert len(splits.test) == (10 if name == "sst2" else 12)
    assert task.test_split == ("test" if name == "trec" else "validation")
    committed = from_yaml(name)
    assert (committed.train_size, committed.validation_size) == TABLE_6[name]


def test_the_phrases_that_come_with_the_suite_are_asked_as_sst2():
    phrases, sst2 = (vars(from_yaml(name)) for name in ("phrases", "sst2"))
    for key in ("prompt", "masked_prompt"):  # the asset has no spaces to strip
        assert phrases[key] == sst2[key].replace(":strip", "")
    for key in ("candidates", "label_words", "max_length"):
        assert phrases[key] == sst2[key]
