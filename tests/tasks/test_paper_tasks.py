"""The paper's tasks: its prompts to the letter, the hub's labels, and Table 6's sizes."""

import pytest

from tests.support import hub_copies
from tests.tasks.test_task_data import from_yaml
from zo.tasks import load_splits, render
from zo.tasks.templates import fill

TABLE_6 = dict.fromkeys(("sst2", "boolq", "rte", "wic", "trec"), (1000, 500))
TABLE_6 |= {"copa": (300, 100), "wsc": (450, 100), "cb": (200, 50)}
ASKED = {
    "sst2": (
        "sentence number 0 is made up It was",
        [" terrible", " great"],
        "sentence number 0 is made up It was <mask> .",
        [" bad", " great"],
    ),
    "rte": (
        'Town 0 lies in Spain.\nDoes this mean that "0 is a town." is true? Yes or No?\n',
        ["Yes", "No"],
        "Town 0 lies in Spain. ? <mask> , 0 is a town.",
        [" Yes", " No"],
    ),
    "cb": (
        'Suppose B: Is 0 odd? A: I think so. Can we infer that "0 is odd"? Yes, No, or Maybe?\n',
        ["Yes", "No", "Maybe"],
        "B: Is 0 odd? A: I think so. ? <mask> , 0 is odd",
        [" Yes", " No", " Maybe"],
    ),
    "copa": ("Ship 0 sank because", [" the wind blew 0 times.", " I sold it."], None, None),
    "wic": (
        'Does the word "bank" have the same meaning in these two sentences? Yes, No?\n'
        "Bank 0 lent money .\nWe sat on the bank 0 times .\n",
        ["No", "Yes"],
        'Bank 0 lent money . We sat on the bank 0 times . Does the word "bank" have the same'
        " meaning? <mask> .",
        [" No", " Yes"],
    ),
    "wsc": (
        "Ann thanked Eve 0 times because She had helped.\n"
        'In the previous sentence, does the pronoun "she" refer to Eve? Yes or No?\n',
        ["No", "Yes"],
        None,
        None,
    ),
    "boolq": (
        "Numbers -- 0 is one. Is 0 a number?\n",
        ["No", "Yes"],
        "Numbers -- 0 is one. Is 0 a number? <mask> .",
        [" No", " Yes"],
    ),
    "trec": (
        "Question: What is thing 0 ?\nType:",
        [" Description", " Entity", " Abbreviation", " Human", " Number", " Location"],
        "What is thing 0 ? This is a <mask> question.",
        [" what", " thing", " short", " who", " how", " where"],
    ),
}
"""Row 0 of each copy as decoders and as masked models read it, and the answers to both as the hub numbers them."""


@pytest.mark.parametrize("name", sorted(TABLE_6))
def test_prompts_answers_labels_and_splits_are_those_of_the_paper(name, tmp_path):
    """To the letter; the original validation split is the test set, and TREC has its own."""
    sizes = {"train_size": 12, "validation_size": 6, "split_order": "first"}
    task = from_yaml(name, path=str(hub_copies.write(tmp_path / "copy", name)), **sizes)
    splits = load_splits(task)
    fields, labels = splits.train[0].fields, [e.label for e in splits.train]
    prompt, answers, masked_prompt, words = ASKED[name]
    assert render(task, splits.train[0]) == prompt
    found = [fill(task.candidates[i], fields, "candidates") for i in labels]
    assert found == (answers * 6)[:12]
    filled = task.masked_prompt and fill(task.masked_prompt, fields, "masked_prompt")
    assert filled == masked_prompt
    assert (
        words is task.label_words is None
        or [task.label_words[i] for i in labels[:6]] == ((words * 3)[:6])
    )
    assert task.objective == ("lm" if name == "copa" else "classification")
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [12, 6, 12]
    assert task.test_split == ("test" if name == "trec" else "validation")
    committed = from_yaml(name)
    assert (committed.train_size, committed.validation_size) == TABLE_6[name]


def test_the_phrases_that_come_with_the_suite_are_asked_as_sst2():
    phrases, sst2 = (vars(from_yaml(name)) for name in ("phrases", "sst2"))
    for key in ("prompt", "masked_prompt"):  # the asset has no spaces to strip
        assert phrases[key] == sst2[key].replace(":strip", "")
    for key in ("candidates", "label_words", "max_length"):
        assert phrases[key] == sst2[key]
