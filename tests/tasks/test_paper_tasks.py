"""Tasks of the paper and of the MeZO line: prompts to the letter, the hub's labels, and Table 6's sizes."""

import re
from pathlib import Path

import pytest
import yaml

from tests.support import hub_copies
from tests.support.tiny_models import tokenizer
from zo.tasks import TaskConfig, TaskError, hub, load_splits, tokenize
from zo.tasks.show import main
from zo.tasks.templates import fill

CONF = Path(__file__).parents[2] / "conf" / "task"

TABLE_6 = {"copa": (300, 100), "wsc": (450, 100), "cb": (200, 50)}  # others: (1000, 500)
ASKED = {
    "sst2": ("sentence number 0 is made up It was", [" terrible", " great"]),
    "rte": ('Town 0 lies in Spain.\nDoes this mean that "0 is a town." is true? Yes or No?\n', ["Yes", "No"]),
    "cb": ('Suppose B: Is 0 odd? A: I think so. Can we infer that "0 is odd"? Yes, No, or Maybe?\n',
        ["Yes", "No", "Maybe"]),
    "copa": ("Ship 0 sank because", [" the wind blew.", " I sold it."]),
    "wic": ('Does the word "bank" have the same meaning in these two sentences? Yes, No?\nBank 0 lent money .\n'
        "We sat on the bank 0 times .\n", ["No", "Yes"]),
    "wsc": ("Ann thanked Eve 0 times because She had helped.\n"
        'In the previous sentence, does the pronoun "she" refer to Eve? Yes or No?\n', ["No", "Yes"]),
    "boolq": ("Numbers -- 0 is one. Is 0 a number?\n", ["No", "Yes"]),
    "trec": ("Question: What is thing 0 ?\nType:",
        [" Description", " Entity", " Abbreviation", " Human", " Number", " Location"]),
    "squad": ("Title: Town\nContext: It is old.\nQuestion: How old?\nAnswer:", [" very old\n"]),
    "drop": ("Passage: It is old.\nQuestion: How old?\nAnswer:", [" very old\n"]),
    "record": ("A town.\n- It is old\n-", [" People like Oslo ."]),
}  # fmt: skip
"""Row 0 of each copy as a decoder reads it, and the answers as the hub numbers them."""

ASKED_WITH_A_MASK = {
    "sst2": ("sentence number 0 is made up It was <mask> .", [" bad", " great"]),
    "rte": ("Town 0 lies in Spain. ? <mask> , 0 is a town.", [" Yes", " No"]),
    "cb": ("B: Is 0 odd? A: I think so. ? <mask> , 0 is odd", [" Yes", " No", " Maybe"]),
    "wic": ('Bank 0 lent money . We sat on the bank 0 times . Does the word "bank" have the same meaning? <mask> .',
        [" No", " Yes"]),
    "boolq": ("Numbers -- 0 is one. Is 0 a number? <mask> .", [" No", " Yes"]),
    "trec": ("What is thing 0 ? This is a <mask> question.", [" what", " thing", " short", " who", " how", " where"]),
}  # fmt: skip


def from_yaml(name, **changes):
    values = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
    del values["defaults"]
    return TaskConfig(**values | changes)


@pytest.mark.parametrize("name", ASKED)
def test_prompts_answers_labels_and_splits_are_those_of_the_paper(name, tmp_path, monkeypatch):
    """To the letter; the original validation split is the test set, and TREC has its own. The hub is not asked."""
    monkeypatch.setattr(hub, "answers", lambda: pytest.fail("the hub was asked"))
    sizes = {"train_size": 12, "validation_size": 6, "split_order": "first"}
    task = from_yaml(name, path=str(hub_copies.write(tmp_path / "copy", name)), **sizes)
    splits, tokens = load_splits(task), tokenizer()
    encoded = tokenize(task, tokens, splits.train, "decoder")
    prompt, answers = ASKED[name]
    masked_prompt, words = ASKED_WITH_A_MASK.get(name, (None, None))
    assert tokens.decode(encoded[0].prompt_ids) == f"</s>{prompt}"
    found = [tokens.decode(e.candidate_ids[e.label]) for e in encoded]
    assert found == (answers * 12)[:12]
    fields, labels = splits.train[0].fields, [e.label for e in encoded]
    assert (task.masked_prompt and fill(task.masked_prompt, fields, "")) == masked_prompt
    assert (task.label_words and [task.label_words[i] for i in labels[: len(words)]]) == words
    assert (task.objective == "lm") == (name in ("copa", "squad", "drop", "record"))
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [12, 6, 12]
    assert task.test_split == ("test" if name == "trec" else "validation")
    committed = from_yaml(name)
    assert (committed.train_size, committed.validation_size) == TABLE_6.get(name, (1000, 500))
    if name == "record":
        assert list(map(encoded[0].is_right, range(3))) == [False, True, True]
    if name in ("squad", "drop"):
        assert encoded[0].references == ("very old", "old")


def test_a_copy_without_its_readme_has_no_configuration_and_is_read_as_it_is(tmp_path):
    copy = hub_copies.write(tmp_path / "copy", "sst2")
    (copy / "README.md").unlink()
    sizes = {"train_size": 12, "validation_size": 6}
    with pytest.raises(TaskError) as told:
        load_splits(from_yaml("sst2", path=str(copy), **sizes))
    right = "task.subset=null task.data_dir=sst2"
    assert str(told.value) == (
        f"task.subset=sst2: no configuration 'sst2' in {copy}; {right} reads the files as they are"
    )
    changes = dict(word.removeprefix("task.").split("=") for word in right.split())
    as_it_is = from_yaml("sst2", path=str(copy), **sizes, **changes | {"subset": None})
    assert len(load_splits(as_it_is).test) == 12


def test_show_prints_a_decoders_prompt_and_candidates_with_the_borders_of_tokens(tmp_path, capsys):
    copy = hub_copies.write(tmp_path / "copy", "rte")
    sizes = ["task.train_size=12", "task.validation_size=6", "task.split_order=first", "n=1"]
    assert main(["task=rte", f"task.path={copy}", "model=reviews-tiny", *sizes]) == 0
    out, err = capsys.readouterr()
    told, labels, lengths, example, prompt, true, other = filter(None, out.splitlines())
    assert err == ""
    assert told == "rte for reviews-tiny, a decoder model: 12 train, 6 validation, 12 test"
    assert labels == "true in the training split: 'Yes' 6, 'No' 6"
    assert re.fullmatch("tokens per training example, median .* task.max_length 512", lengths)
    assert example.startswith("example 0: label 0, ")
    assert prompt.replace("|", "").startswith("</s> town 0 lies in spain.⏎does this mean that ")
    assert prompt.endswith("| yes| or| no|?|⏎")
    assert prompt.count("|") == int(example.split(", ")[1].split()[0]) - 1
    assert true.startswith("  0 true  [y][es]  ")
    assert other.startswith("  1 other [no]  ")
