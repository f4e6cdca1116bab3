"""Data, templates and candidates that cannot be meant: one sentence names the key, and the file or row."""

import io
import json
from pathlib import Path

import pyarrow
import pytest
from huggingface_hub import constants
from pyarrow import parquet

from tests.support.tiny_models import tokenizer
from zo import config
from zo.config import command_line
from zo.run.command import make
from zo.tasks import TaskConfig, TaskError, load_splits, tokenize
from zo.tasks.checks import check_tokens
from zo.tasks.data import complete

OWN = {"validation_split": "auto", "test_split": "auto", "label": None, "max_length": 64}


def own(path, kind="classification", **changes):
    return TaskConfig(**{"name": "own", "kind": kind, "path": str(path), **OWN, **changes})


def lines(*given):
    return "\n".join(given) + "\n"


def chat(*turns):
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


def pairs(row):
    return lines(*[json.dumps(row)] * 9)


def stored(*texts, names=("text", "label"), labels=None):
    """Returns a parquet file of texts, whose label stands beside each."""
    labels = labels or ["label" if text == "text" else text for text in texts]
    stream = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_arrays([[*texts], labels], [*names]), stream)
    return stream.getvalue()


PAIRS = [f"film {i},{i % 2}" for i in range(12)]
CSV = lines("text,label", *PAIRS)
JSONL = [json.dumps({"prompt": f"ask {i}", "completion": "yes"}) for i in range(12)]
TICKETS = lines(
    "id,kind_id,words,team", *[f"{i},{i % 2},word {i},{'abc'[i % 3]}" for i in range(12)]
)
CHATS = lines(*[json.dumps(chat(("user", "a"), ("assistant", "b")))] * 9)
IGNORED = {"role": "assistant", "content": "b", "weight": 0}
PREFERENCE = {"kind": "preference"}
COMPLETION, CONVERSATION = {"kind": "completion"}, {"kind": "completion", "template": "any"}
WHOLE = {"label": "label", "prompt": "{text}", "candidates": ["0", "1"]}
WHOLE |= {"validation_split": None, "test_split": None}
MASKED = {"masked_prompt": "{text} <mask>", "label_words": [" was", " the"]}
REFUSED = [
    ("x.csv", None, {}, r"task\.path: .*no file or directory .*x\.csv"),
    ("x.csv", None, {"path": "no/such"}, r"task\.path: no such file or directory no/such here, and .* be loaded"),
    ("x.csv", "", {}, r"task\.path: .*x\.csv is empty"),
    ("x.csv", "text,label\n", {}, r"task\.path: .*has no rows below its header"),
    ("x.csv", CSV, {"train_size": 50}, r"50 \+ 1 \+ 1 = 52 examples needed, .* has 12"),
    ("x.csv", CSV, {"validation_size": 50}, r"1 \+ 50 \+ 1 = 52 examples needed, .* has 12"),
    ("x.xlsx", "PK\x03\x04", {}, r"x\.xlsx is none of csv, tsv, json, jsonl and parquet"),
    ("x.csv", b"text,label\ncaf\xe9,1\n", {}, r"task\.path: line 2 of .*x\.csv is not UTF-8"),
    ("x.csv", lines("text,label", *PAIRS, "a, b,1"), {}, r"in line 14: 3\); put texts"),
    ("x.csv", "# made\n" + CSV, {}, r"in line 2: 2\); take lines that begin with # out"),
    ("x.csv", lines(CSV + r'"a \"b\"",1'), {}, r"x\.csv: line 14 has text after a closing quote; .* not a backslash"),
    ("x.csv", lines(CSV + '"Alien" is great,1'), {}, r"x\.csv: line 14 has text after a closing quote; put the whole"),
    ("x.csv", lines(CSV + '"a,1', "b,1"), {}, r"x\.csv: the quote in line 14 is not closed"),
    ("x.jsonl", lines(*JSONL, '{"prompt": ["a"], "completion": "b"}'), COMPLETION,
        r"task\.prompt: row 12, counted from 0, has a list in prompt, which is no text"),
    ("x.jsonl", lines(*JSONL, r'{"prompt": "\ud800"}'), COMPLETION, r"row 12 of .*x\.jsonl, .* invalid character"),
    ("x.jsonl", lines(*[json.dumps(chat(("user", [{"type": "image"}])))] * 9), CONVERSATION,
        r"task\.messages: row \d+, counted from 0, has a message whose content is no text"),
    ("x.jsonl", lines(*JSONL, "{oops"), {}, r"task\.path: .*line 13 is not JSON"),
    ("x.csv", lines(*JSONL), {"path": "csv", "data_files": {"train": "x.csv"}},
        r"task\.path=csv: .* looks like json; use task\.path=json"),
    ("x.csv", None, {"path": "csv", "data_files": {"train": "package:no_such/x.csv"}, "install": "pip it"},
        r"task\.data_files\.train: .*'no_such' is not installed; `pip it` installs it"),
    ("x.csv", CSV, {"name": "films", "data_files": {"train": "package:zo/assets/phrases/phrases.csv"}},
        r"task\.path=x\.csv would not be read: task=films reads package:.*; use task=classification or"),
    ("x.csv", CSV, {"where": {"origin": "x"}}, r"task\.where: .*'origin', only label, text"),
    ("x.csv", CSV, {"validation_split": "dev"}, r"task\.validation_split=dev: must be one of train, "),
    ("x.csv", lines("a,b,c", "1,2,3"), {"label": "b"}, r"task\.text: none of the columns a, b, c"),
    ("x.csv", CSV, {"label": "y"}, r"task\.label: .*no column 'y', only"),
    ("x.csv", lines(CSV + ",1"), {}, r"task\.prompt: 1 of \d+ rows .* row 12,"),
    ("x.csv", lines(CSV + "film,"), {}, r"task\.label: 1 of \d+ rows .* row 12,"),
    ("x.csv", lines("text,label", *["film,1"] * 9), {}, r"all 9 rows are 1; two classes"),
    ("x.csv", lines("text,label", *[f"film,{i / 7}" for i in range(120)]), {},
        r"has 120 different values, more than 100; name the column"),
    ("x.csv", lines("text,label", *[f"film {i},{i}" for i in range(12)]), {},
        r"'label' has a different value in each of 12 rows"),
    ("x.csv", TICKETS, {}, r"as task\.label=team \('team' has 3 values\)$"),
    ("x.csv", TICKETS, {"label": "id", "text": "words"},
        r"with the classes, as task\.label=team \('team' has 3 values\); or use"),
    ("x.csv", lines("user_id,words", "1,a", "1,b", "2,c"), {}, r"true label, as task\.label=words$"),
    ("x.csv", lines("text,text,label", "a,b,1"), {}, r"task\.path: the header of x\.csv has 'text' twice; rename one"),
    ("x.jsonl", '{"text": "a", "label": 1, "label": 2}', {}, r"task\.path: an object of x\.jsonl has 'label' twice"),
    ("x.csv", lines("text,label,part", *[f"{of},{'Train' if i else 'dev'}" for i, of in enumerate(PAIRS)]), {},
        r"the column 'part' of x\.csv says dev, Train; write .* as 'task\.where=\{part: Train\}'"),
    ("x.csv", lines(*PAIRS), {}, r"task\.path: the first line of x\.csv is a row, since '0' is a value below it, too"),
    ("x.jsonl", lines(*[json.dumps({"text": f"{i}", "label": [0, 1, True][i % 3]}) for i in range(12)]), {},
        r"task\.label: 'label' of x\.jsonl is true or false in some rows and a number in others"),
    ("x.csv", lines("text,label", *["a,3.1", "b,3.10", "c,3.2"] * 4), {},
        r"'label' of x\.csv has '3\.1' and '3\.10', which are one number and two names"),
    ("x.csv", CSV * 2, {}, r"row 12 of x\.csv, counted from 0, repeats the names of the columns"),
    ("x.csv", lines(CSV + "Total,6"), {}, r"row 12 of x\.csv, counted from 0, has the total of the rows above"),
    ("x.csv", lines("text,label", *[f"a {i},{'pn'[i % 2]}" for i in range(9)], "Summe:,9", *PAIRS), {}, r"row 9 of"),
    ("x.jsonl", lines(*[json.dumps({"text": f"a {i}", "label": i % 2}) for i in range(9)],
        '{"text": "all", "label": 4}'), {}, r"row 9 of x\.jsonl, counted from 0, has the total"),
    ("x.parquet", stored(*"abcdef", "TOTAL", labels=[*[0, 1] * 3, 3]), {}, r"row 6 of x\.parquet, .* has the total"),
    ("x.csv", CSV.encode("utf-16-le"), {}, r"x\.csv looks like UTF-16 without its byte order mark; save it as UTF-8"),
    ("x.jsonl", lines(*JSONL).encode("utf-16-be"), {}, r"x\.jsonl looks like UTF-16 without its byte order mark"),
    ("x.parquet", stored("a", "text", "b"), {}, r"row 1 of x\.parquet, counted from 0, repeats the names of the col"),
    ("x.parquet", stored("a", "b", names=["text", "text"]), {}, r"the schema of x\.parquet has 'text' twice; rename"),
    ("data/train.csv.gz", CSV, {"path": "data"}, r"data has only compressed files; unpack them: data/train\.csv\.gz$"),
    ("x.csv", CSV.replace(",0", ",bad").replace(",1", ",good"), {"candidates": [" good", " bad"]},
        r"task\.candidates: ' good' stands for the label 'bad', and .* in the order bad, good, or task\.labels in"),
    ("x.csv", lines("text,label,is_valid", *[f"{of},{i % 4 == 0}" for i, of in enumerate(PAIRS)]), {},
        r"the column 'is_valid' of x\.csv says True, False; write .* as 'task\.where=\{is_valid: False\}'"),
    ("x.csv", CSV, {"where": {"label": [2]}}, r"task\.where: no row of x\.csv has \[2\] in label; .* as 0, 1$"),
    ("x.jsonl", lines(*[json.dumps({"prompt": "a", "completion": "b", "label": i > 3}) for i in range(9)]), COMPLETION,
        r"the column 'label' of x\.jsonl says true or false of each completion; 'task\.where=\{label: true\}' trains"),
    ("x.csv", "version https://git-lfs.github.com/spec/v1\noid 1\n", {}, r"x\.csv is a pointer of Git LFS; `git lfs"),
    ("data/train-1-of-3.csv", CSV, {"path": "data"}, r"data has 1 of the 3 files train-\.\.\.; add the others, or"),
    ("x.csv", CSV, {"candidates": [" a", " b", " c"]}, r"task\.candidates: 3 given, .* 2 values"),
    ("x.csv", lines(CSV + "film,2"), WHOLE, r"task\.label: row 12 of split 'train' has the label 2, .* of the 2 "),
    ("x.csv", CSV, {"labels": [0, 2]}, r"task\.labels: row \d+ of split 'train' has .* none of 0, 2; the data have 0"),
    ("x.csv", lines("prompt,x,y", "a,b,c"), COMPLETION, r"task\.completion: none of the columns"),
    ("x.jsonl", lines(*[json.dumps({"prompt": "ask", "completion": "yes " * 99})] * 9), COMPLETION,
        r"task\.max_length=64: .* the prompt of row \d+; give at least"),
    *[("x.jsonl", lines(*[json.dumps({"prompt": "ask", "of": of})] * 9), COMPLETION | {"references": "of"}, said)
        for of, said in [
            ({"id": [1], "text": ["yes"]}, r"row \d+ has several parts in of \(id, text\); name one, as of\.text"),
            ([{"text": "yes"}], r"task\.references: row \d+ has {'text': 'yes'} in of; must be texts"),
            (["", "yes"], r"task\.references: the first answer of row \d+ in of is empty, and would be trained"),
            (["yes", None], r"task\.references: row \d+ has None in of; must be texts"),
        ]],
    ("x.jsonl", lines(*[json.dumps({"prompt": "ask", "chosen": "ask yes", "rejected": "ask no"})] * 9),
        {"kind": "preference"}, r"both answers begin with the prompt, so that it would stand there twice; take it out"),
    ("x.jsonl", CHATS, COMPLETION, r"task\.messages: the model's tokenizer has no chat template"),
    ("x.jsonl", lines(*[json.dumps(chat(("user", "a")))] * 9), CONVERSATION,
        r"task\.messages: row \d+ ends with the role 'user'"),
    ("x.jsonl", pairs({"chosen": "a"}), PREFERENCE, r"task\.rejected: none of the columns chosen is called rejected"),
    ("x.jsonl", pairs({"chosen": "a b", "rejected": "a b"}), PREFERENCE,
        r"task\.rejected: chosen and rejected are equal in 7 of 7 rows of split 'train' \(the first is row \d"),
    ("x.jsonl", pairs({"chosen": "a b", "rejected": "a b "}), PREFERENCE, r"are equal in 7 of 7 rows"),
    ("x.jsonl", lines(*[json.dumps({"messages": [*chat(("user", "a"))["messages"], IGNORED]})] * 9), COMPLETION,
        r"task\.messages: row \d, counted from 0, has a message of weight 0, which task\.turns=last would train"),
    ("x.jsonl", pairs({"chosen": "a b", "rejected": " "}), PREFERENCE,
        r"task\.rejected: 7 of 7 rows of split 'train' have nothing in rejected"),
    ("x.jsonl", "", PREFERENCE, r"task\.path: .*x\.jsonl is empty"),
    ("x.jsonl", pairs({"chosen": chat(("user", "a"))["messages"], "rejected": "b"}), PREFERENCE,
        r"task\.rejected: row \d has no list of \{role, content\}"),
    ("x.jsonl", pairs({"chosen": chat(("user", "a"))["messages"], "rejected": chat(("user", "b"))["messages"]}),
        PREFERENCE | {"template": "any"},
        r"task\.rejected: row \d, counted from 0: chosen and rejected begin with different messages; begin both"),
    ("x.csv", CSV, {"candidates": [" bad", " "]}, r"task\.candidates: ' ' is empty"),
    ("x.csv", CSV, {"prompt": "{text} It wa", "candidates": ["s", " great"]},
        r"task\.candidates: 's' changes the last tokens of the prompt '.* It wa'"),
    ("x.csv", CSV, {"candidates": [" {text}", " {text:strip}"]}, r"task\.candidates: two of them .* of .*text"),
    ("x.csv", CSV, {"max_length": 3}, r"task\.max_length=3: special .* no room .* give at least 4"),
    ("x.csv", CSV, {**MASKED, "max_length": 2},
        r"task\.max_length=2: the template leaves no room for the texts; give at least"),
    ("x.csv", CSV, {"max_length": 10}, r"task\.max_length=10: nothing of the texts is left"),
    ("x.csv", CSV, {**MASKED, "label_words": [" was", " wonderful"]},
        r"task\.label_words: ' wonderful' is not one token of the model, but Ġ"),
    ("x.csv", CSV, {"masked_prompt": "{text}"}, r"task\.masked_prompt: one <mask> is needed"),
    ("x.csv", CSV, {"text": "{text:upper}"}, r"task\.text: \{text:upper\} names none of strip, "),
    ("x.csv", CSV, {"text": "title"}, r"task\.text: the data have no column 'title', only label, text"),
    ("x.csv", CSV, {"text": "{text!r}"}, r"task\.text: the data have no column 'text!r', only label, text"),
    ("x.csv", CSV, {"text": "{text"}, r"task\.text: '\{text' is not a template"),
]  # fmt: skip


def opened(path, template=None, **changes):
    """Reads a task and makes tokens of it, of a masked model's if it has label words."""
    task, _ = complete(own(path, **changes))
    examples, masked = load_splits(task).train, "label_words" in changes
    tokens = tokenizer(mask="<mask>") if masked else tokenizer()
    tokens.chat_template = template
    encoded = tokenize(task, tokens, examples, "masked" if masked else "decoder")
    return check_tokens(task, {"train": examples}, {"train": encoded})


@pytest.mark.parametrize(("file", "content", "changes", "message"), REFUSED)
def test_what_cannot_be_meant_is_one_sentence_with_key_file_or_row(
    file, content, changes, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TaskError, match=message) as caught:
        opened(**{"path": file, **changes})
    assert "\n" not in str(caught.value)


def test_a_run_that_is_refused_ends_with_status_2_and_leaves_nothing_behind(tmp_path, capsys):
    file, out = tmp_path / "x.csv", tmp_path / "out"
    file.write_text(CSV)
    config.register()
    given = ["task=classification", f"task.path={file}", "tracking.mode=disabled", f"out={out}"]
    given += ["batch_size=11"]
    command_line.check_command_line(given)
    assert make(*command_line.runs(given)) == 2
    why = f"batch_size=11: must be at most the 10 training examples of {file}\n"
    assert capsys.readouterr().err == why
    assert not [path for path in out.rglob("*") if path.is_file()]


def test_a_cache_that_cannot_be_written_is_told_how_to_lie_elsewhere(tmp_path, monkeypatch):
    def load_dataset(*_, **__):
        raise RuntimeError("cannot build") from PermissionError(13, "no", constants.HF_HOME)

    (tmp_path / "README.md").write_text("---\nconfigs: []\n---\n")
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(TaskError, match="set HF_HOME to a directory that can be written"):
        opened(tmp_path)


def test_a_directory_with_a_hubs_card_is_read_anew(tmp_path):
    """The cache of `datasets` does not see that its files have changed."""
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: train.jsonl\n---\n"
    )
    for said in ("old", "new"):
        rows = [json.dumps({"text": f"{said} {i}", "label": "np"[i % 2]}) for i in range(20)]
        (tmp_path / "train.jsonl").write_text(lines(*rows))
        task, _ = complete(own(tmp_path, train_size=4))
        assert load_splits(task).train[0].fields["text"].startswith(said)
