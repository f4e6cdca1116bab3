"""Data of a user's own, without a YAML: what is found, and what is refused with file, key and row."""

import json
import re

import datasets
import pytest

from tests.support.tiny_models import opt, tokenizer
from zo import config
from zo.config import command_line
from zo.run.command import make
from zo.tasks import TaskConfig, load_splits, tokenize
from zo.tasks.checks import preview
from zo.tasks.own import complete

TEXTS = [f"film number {i} was {'good' if i % 2 else 'bad'}" for i in range(20)]
LABELS = ["pos" if i % 2 else "neg" for i in range(20)]
OWN = {"validation_split": "auto", "test_split": "auto", "label": None, "max_length": 64}


def own(path, kind="classification", **changes):
    return TaskConfig(**{"name": "own", "kind": kind, "path": str(path), **OWN, **changes})


def write(path, rows):
    """Writes rows as the file's ending says."""
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        between = {".csv": ",", ".tsv": "\t"}[path.suffix]
        lines = [between.join(rows[0]), *(between.join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    return path


def rows(text="review", label="sentiment"):
    return [{text: t, label: w} for t, w in zip(TEXTS, LABELS, strict=True)]


@pytest.mark.parametrize("ending", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_columns_labels_splits_and_sizes_are_found_in_every_format(ending, tmp_path):
    task, notes = complete(own(write(tmp_path / f"mine.{ending}", rows())))
    assert (task.label, task.labels) == ("sentiment", ["neg", "pos"])
    assert task.candidates == [" neg", " pos"]
    assert task.prompt == "{review}\nLabel:"
    assert "label 'sentiment'; 'neg' is ' neg', 'pos' is ' pos'" in notes[0]
    splits = load_splits(task)
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [16, 2, 2]
    every = splits.train + splits.validation + splits.test
    assert sorted(e.row for e in every) == list(range(20))
    assert all(e.label == e.row % 2 and e.fields["review"] == TEXTS[e.row] for e in every)
    assert load_splits(task) == splits


def test_a_directory_that_datasets_saved_has_its_own_splits(tmp_path):
    train, test = datasets.Dataset.from_list(rows()), datasets.Dataset.from_list(rows()[:6])
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(tmp_path / "saved")
    task, _ = complete(own(tmp_path / "saved"))
    assert (task.validation_split, task.test_split) == (None, "test")
    splits = load_splits(task)
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [18, 2, 6]


def test_words_that_look_like_missing_values_are_text(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("text,label\n" + "NA,None\nnull,some\n" * 3)
    task, _ = complete(own(file))
    assert task.candidates == [" None", " some"]
    assert {e.fields["text"] for e in load_splits(task).train} <= {"NA", "null"}


def test_columns_and_words_can_be_given(tmp_path):
    file = write(
        tmp_path / "mine.jsonl", [{"a b": t, "c": "x", "d": i % 2} for i, t in enumerate(TEXTS)]
    )
    task, _ = complete(own(file, text="{a b} ({c})", label="d", candidates=[" no", " yes"]))
    encoded = tokenize(task, tokenizer(), load_splits(task).train, "decoder")[0]
    assert tokenizer().decode(encoded.prompt_ids).endswith("(x)\nLabel:")
    assert task.labels == [0, 1]


def test_completions_need_no_candidates_and_no_label(tmp_path):
    file = write(tmp_path / "mine.jsonl", [{"instruction": t, "response": "Yes!"} for t in TEXTS])
    task, notes = complete(own(file, "completion"))
    assert "prompt '{instruction}', completion '{response}'" in notes[0]
    tokens = tokenizer()
    encoded = tokenize(task, tokens, load_splits(task).train, "decoder")
    assert {tokens.decode(e.candidate_ids[0]) for e in encoded} == {"Yes!</s>"}
    assert encoded[0].references == ("Yes!",)


CHAT = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }}{% if m['role'] == 'assistant' %}</s>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"
)


def chat(*turns):
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


def test_conversations_are_written_by_the_tokenizers_template(tmp_path):
    file = write(tmp_path / "mine.jsonl", [chat(("user", t), ("assistant", "ok")) for t in TEXTS])
    task, _ = complete(own(file, "completion"))
    tokens = tokenizer()
    tokens.chat_template = CHAT
    splits = load_splits(task)
    encoded = tokenize(task, tokens, splits.train, "decoder")[0]
    text = TEXTS[splits.train[0].row]
    assert tokens.decode(encoded.prompt_ids) == f"<user> {text}<assistant> "
    assert tokens.decode(encoded.candidate_ids[0]) == "ok</s>"


def test_rows_that_are_there_twice_are_told_and_the_first_shown_as_text_and_as_tokens(tmp_path):
    twice = [{"id": i // 2, **row} for i, row in enumerate(rows("text", "label"))]
    task, notes = complete(own(write(tmp_path / "mine.jsonl", twice)))
    assert "10 rows have the id of another one (the first is 0 in row 0" in notes[1]
    splits, tokens = load_splits(task), tokenizer()
    lines = preview(task, splits.train, tokenize(task, tokens, splits.train, "decoder"), tokens)
    assert len(lines) == 6
    first = splits.train[0]
    assert lines[0].startswith(f"row {first.row}: ")
    assert f"{first.fields['text']}\\nLabel:' -> ' {LABELS[first.row]}'" in lines[0]
    assert lines[1].endswith("]")
    assert "⏎" in lines[1]


def lines(*given):
    return "\n".join(given) + "\n"


PAIRS = [f"film {i},{i % 2}" for i in range(12)]
JSONL = [json.dumps({"prompt": f"ask {i}", "completion": "yes"}) for i in range(12)]
BAD = {
    "no such file": ("x.csv", None, {}, r"task\.path: .*no file or directory .*x\.csv"),
    "empty": ("x.csv", "", {}, r"task\.path: .*x\.csv is empty"),
    "header alone": ("x.csv", "text,label\n", {}, r"task\.path: .*has no rows below its header"),
    "two rows": ("x.csv", lines("text,label", *PAIRS[:2]), {}, r"0 \+ 1 \+ 1 = 3 examples needed, .* has 2"),
    "spreadsheet": ("x.xlsx", "PK\x03\x04", {}, r"x\.xlsx is none of csv, tsv, json, jsonl and parquet"),
    "encoding": ("x.csv", b"text,label\ncaf\xe9,1\n", {}, r"task\.path: line 2 of .*x\.csv is not UTF-8"),
    "commas": ("x.csv", lines("text,label", *PAIRS, "a, b,1"), {}, r"in line 14: 3\); put texts"),
    "broken json": ("x.jsonl", lines(*JSONL, "{oops"), {}, r"task\.path: .*line 13 is not JSON"),
    "text of no name": ("x.csv", lines("a,b,c", "1,2,3"), {"label": "b"},
        r"task\.text: none of the columns a, b, c is"),
    "label of no name": ("x.csv", lines("a,b", "1,2"), {}, r"task\.label: none of the columns a, b is called label"),
    "no such text": ("x.csv", lines("text,label", *PAIRS), {"text": "body"}, r"task\.prompt: .*no column 'body'"),
    "no such label": ("x.csv", lines("text,label", *PAIRS), {"label": "y"}, r"task\.label: .*no column 'y', only"),
    "text missing": ("x.csv", lines("text,label", *PAIRS, ",1"), {}, r"task\.prompt: 1 of \d+ rows .* row 12,"),
    "label missing": ("x.csv", lines("text,label", *PAIRS, "film,"), {}, r"task\.label: 1 of \d+ rows .* row 12,"),
    "one class": ("x.csv", lines("text,label", *["film,1"] * 9), {}, r"all 9 rows are 1; two classes"),
    "numbers": (
        "x.csv", lines("text,label", *[f"film,{i / 7}" for i in range(120)]), {},
        r"has 120 different values, more than 100; name the column",
    ),
    "words for labels": (
        "x.csv", lines("text,label", *PAIRS), {"candidates": [" a", " b", " c"]},
        r"task\.candidates: 3 given, .* 2 values",
    ),
    "too many": ("x.csv", lines("text,label", *PAIRS), {"train_size": 50},
        r"50 \+ 1 \+ 1 = 52 examples needed, .* has 12"),
    "no completion": ("x.csv", lines("prompt,x,y", "a,b,c"), {"kind": "completion"},
        r"task\.completion: none of the columns"),
    "completion missing": (
        "x.jsonl", lines(*JSONL, '{"prompt": "ask", "completion": null}'), {"kind": "completion"},
        r"task\.completion: 1 of \d+ rows .* nothing in completion .* row 12,",
    ),
    "no chat template": (
        "x.jsonl", lines(*[json.dumps(chat(("user", "a"), ("assistant", "b")))] * 9), {"kind": "completion"},
        r"task\.messages: the model's tokenizer has no chat template",
    ),
    "no answer": (
        "x.jsonl", lines(*[json.dumps(chat(("user", "a")))] * 9), {"kind": "completion", "chat": True},
        r"task\.messages: row \d+ ends with the role 'user'",
    ),
    "long answer": (
        "x.jsonl", lines(*[json.dumps({"prompt": "ask", "completion": "yes " * 99})] * 9),
        {"kind": "completion"},
        r"task\.max_length=64: .* the prompt of row \d+; give at least",
    ),
    "large batch": ("x.csv", lines("text,label", *PAIRS), {"also": {"batch_size": 11}},
        r"batch_size=11: must be at most the 10 training examples"),
    "no such model": ("x.csv", lines("text,label", *PAIRS), {"also": {"model.path": "/nowhere/model"}},
        r"model\.path: .*/nowhere/model"),
    "no such split": ("x.csv", lines("text,label", *PAIRS), {"validation_split": "dev"},
        r"task\.validation_split=dev: Should be one of \['train'\]"),
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A directory with a tiny model, and one whose tokenizer has a chat template."""
    config.register()
    made = []
    for template in (None, CHAT):
        made.append(tmp_path_factory.mktemp("model"))
        opt().save_pretrained(made[-1])
        tokens = tokenizer()
        tokens.pad_token, tokens.chat_template = tokens.eos_token, template
        tokens.save_pretrained(made[-1])
    return made


@pytest.fixture
def data(tmp_path):
    """A directory beside the cache of `datasets`."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("case", BAD)
def test_bad_data_are_one_sentence_with_key_file_or_row(case, data, models, capsys):
    """On stderr of a run that ends with status 2 and leaves nothing behind."""
    name, content, changes, message = BAD[case]
    if content is not None:
        (data / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    changes = dict(changes)
    given = {"task": changes.pop("kind", "classification"), "task.path": data / name}
    given |= {"model.path": models[changes.pop("chat", False)], "task.max_length": 64, "steps": 1}
    given |= {"batch_size": 1, "lr": 1e-6, "tracking.mode": "disabled", "out": data / "out"}
    given |= changes.pop("also", {})
    given |= {f"task.{key}": json.dumps(value) for key, value in changes.items()}
    words = [f"{key}={value}" for key, value in given.items()]
    there = set(data.rglob("*"))
    try:  # as `python train.py` does
        command_line.check_command_line(words)
        status = make(*command_line.runs(words))
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert {path for path in data.rglob("*") if path.is_file()} <= there
    heading, *problems = capsys.readouterr().err.splitlines()
    (sentence,) = problems or [heading]
    assert re.search(message, sentence)
