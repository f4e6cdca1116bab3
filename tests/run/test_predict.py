"""Predictions for a file: those of the run's evaluations, by the run, its exported model or its exported adapter."""

import csv
import io
import json
import shutil

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support import hub_copies
from tests.support.runs import REVIEWS_TINY, composed, rows_once_run, stopped_after
from zo import export, predict
from zo.run.assembly import Session
from zo.run.runner import run
from zo.run.store.directory import directory_of

LABELS = ("neg", "pos")
FEW = ("optimizer=mezo", "lr=1e-3", "steps=2", "eval_every=1")


@pytest.fixture(scope="module")
def own_csv(tmp_path_factory, reviews_csv):
    """The made-up reviews with labels of a user's own."""
    path = tmp_path_factory.mktemp("own") / "own.csv"
    with reviews_csv.open() as file, path.open("w") as out:
        rows = [(row["text"], LABELS[int(row["label"])]) for row in csv.DictReader(file)]
        csv.writer(out).writerows([("review", "sentiment"), *rows])
    return path


def configured(out, *overrides):
    return composed(out, "model=reviews-tiny", *FEW, *overrides)


def own_run(data, out, *overrides):
    task = ["task=classification", f"task.path={data}", "task.test_size=48", "task.max_length=24"]
    return configured(out, *task, *overrides)


def predicted(capsys, *arguments):
    """Returns the rows that the command prints, and what it says of them."""
    capsys.readouterr()
    status, said = predict.main([*map(str, arguments)]), capsys.readouterr()
    assert status == 0, said.err
    return list(csv.DictReader(io.StringIO(said.out))), said.err


def refused(capsys, *arguments):
    """Returns the line that the command ends with."""
    assert predict.main([*map(str, arguments)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    return said


def triples(rows):
    return [(r["label"], r["predicted"], float(r["probability"])) for r in rows]


def stored(directory):
    with (directory / "predictions.csv").open() as file:
        return triples(row for row in csv.DictReader(file) if row["split"] == "test")


def write_test_file(cfg, path, labelled=True):
    examples = Session.open(cfg).examples["test"]
    rows = [("id", "review") + ("sentiment",) * labelled]
    for i, example in enumerate(examples):
        rows.append((i, example.fields["review"]) + (LABELS[example.label],) * labelled)
    with path.open("w") as out:
        csv.writer(out).writerows(rows)
    return path


ROBERTA = (
    "model=roberta-large",
    "model.weights=random",
    "model.architecture={hidden_size:32,intermediate_size:64,num_hidden_layers:2,num_attention_heads:4}",
)
WORDS = ("task.prompt='{review} All in all it was'", "task.candidates=[' bad',' good']")


@pytest.mark.parametrize(
    "overrides",
    [
        (*WORDS, "adapter=lora", "model.quantization=int8", "lr=1e-2"),
        (),
        ("optimizer=sgd", "checkpoint.keep_best=true", *WORDS),
        ("adapter=prefix", "precision.restore=snapshot"),
        ("optimizer=lozo", "precision.restore=factors"),
        (*ROBERTA, "precision.restore=merged"),
        ("precision=bf16", "objective=metric", *WORDS),
    ],
)
@pytest.mark.process
def test_predictions_on_the_test_file_are_the_runs(own_csv, tmp_path, capsys, overrides):
    """Of the run, and of its export, where the training data are gone."""
    data = tmp_path / "data.csv"
    data.write_bytes(own_csv.read_bytes())
    cfg = own_run(data, tmp_path / "out", *overrides)
    summary, directory = run(cfg), directory_of(cfg)
    file = write_test_file(cfg, tmp_path / "test.csv")
    data.unlink()
    weights = tmp_path / "weights"
    assert export.main([str(directory), "--out", str(weights)]) == 0
    for source in (directory, weights):
        rows, said = predicted(capsys, source, file)
        found, expected = triples(rows), stored(directory)
        if source == directory:
            assert found == expected
        else:  # weights whose factors were merged
            assert [of[:2] for of in found] == [of[:2] for of in expected]
            assert [of[2] for of in found] == pytest.approx([of[2] for of in expected], abs=1e-4)
        assert f"accuracy {summary['best/test_accuracy']:.1%} of 48 rows" in said
        assert f"macro F1 {summary['best/test_macro_f1']:.1%}" in said


@pytest.mark.process
def test_labels_are_not_needed_and_do_not_change_predictions(own_csv, tmp_path, capsys):
    cfg = own_run(own_csv, tmp_path / "out", "task.train_size=48", "task.validation_size=16")
    run(cfg)
    file = write_test_file(cfg, tmp_path / "test.csv", labelled=False)
    out = tmp_path / "predicted.csv"
    rows, said = predicted(capsys, directory_of(cfg), file)
    assert list(rows[0]) == ["row", "review", "predicted", "probability"]
    assert said == ""
    found = [(r["predicted"], float(r["probability"])) for r in rows]
    assert found == [of[1:] for of in stored(directory_of(cfg))]
    assert predict.main([str(directory_of(cfg)), str(file), "--out", str(out)]) == 0
    assert list(csv.DictReader(out.open())) == rows
    assert capsys.readouterr().out == f"{out}: 48 rows\n"
    unseen, said = predicted(capsys, directory_of(cfg), "--rest", "3", "--without", "1")
    used = {row["row"] for row in csv.DictReader((directory_of(cfg) / "predictions.csv").open())}
    assert not used & {row["row"] for row in unseen}
    assert "of 3 rows" in said
    for wrong in ((file, "--rest", "3"), ()):
        assert refused(capsys, directory_of(cfg), *wrong).startswith("give a file, or --rest N")


@pytest.mark.parametrize(
    ("task", "hidden", "label"),
    [
        ("record", "answers", "Oslo"),
        pytest.param("squad", "answers", None, marks=pytest.mark.process),
    ],
)
def test_rows_with_choices_of_their_own_and_answers_that_are_measured(
    tmp_path, capsys, task, hidden, label
):
    """The run's test examples, all of a split; without the column with the answers, the same predictions."""
    copy = hub_copies.write(tmp_path / "copy", task)
    few = ("task.train_size=12", "task.validation_size=6", "batch_size=4", "task.max_new_tokens=4")
    cfg = configured(tmp_path / "out", f"task={task}", f"task.path={copy}", *few)
    summary, directory = run(cfg), directory_of(cfg)
    file = copy / hub_copies.PARTS.get(task, task) / "validation.jsonl"
    rows, said = predicted(capsys, directory, file)
    if label is not None:
        assert [r["predicted"] for r in rows] == [of[1] for of in stored(directory)]
        assert f"accuracy {summary['best/test_accuracy']:.1%}" in said
        assert rows[0]["label"] == label
    else:
        assert f"f1 {summary['best/test_f1']:.1%} of 12 rows" in said
    asked = [json.loads(line) for line in file.read_text().splitlines()]
    for row in asked:
        del row[hidden]
    file.write_text("\n".join(map(json.dumps, asked)))
    unanswered, said = predicted(capsys, directory, file)
    assert [r["predicted"] for r in unanswered] == [r["predicted"] for r in rows]
    assert "label" not in unanswered[0]
    assert said == ""


@pytest.mark.process
def test_what_cannot_be_predicted_is_said_in_a_sentence(own_csv, tmp_path, capsys):
    cfg = own_run(own_csv, tmp_path / "out", "steps=1")
    icl = own_run(own_csv, tmp_path / "out", "optimizer=icl", "optimizer.k=2")
    run(cfg)
    run(icl)
    run_, other = directory_of(cfg), tmp_path / "other.csv"
    capsys.readouterr()
    for content, arguments, why in (
        ("text,id\nfine,1\n", (), f"{other}: has no column 'review', which the run's task.prompt"),
        ("", (), f"{other} is empty"),
        ("review\n", (), f"{other} has no rows below its header"),
        ('review\nfine\n""\n', (), "1 of 2 rows of split 'other.csv' have nothing"),
        ("review,sentiment\nfine,good\n", (), "'good', which is none of 'neg', 'pos'"),
        (None, (), f"{other}: there is no such file"),
        ("review\nfine\n", ("--step", "7"), "step 7 is beyond its last one, 1"),
        ("review\nfine\n", ("--out", other), "must be a file in a directory that is there"),
        ("review\nfine\n", ("--out", tmp_path / "no" / "x"), "in a directory that is there"),
        ("review\nfine\n", ("--device", "cuda:7"), "device=cuda:7"),
    ):
        other.unlink(missing_ok=True)
        if content is not None:
            other.write_text(content)
        assert why in refused(capsys, run_, other, *arguments)
    other.write_text("review\nfine\n")
    (run_ / "task.json").write_text('{"kinds": 1}')
    assert "task.json is not the run's task" in refused(capsys, run_, other)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "zo.yaml").write_text("task: x")
    for source, why in (
        (REVIEWS_TINY, "has neither config.yaml nor zo.yaml; give a run's directory"),
        (broken, "zo.yaml: is not what zo.export wrote (task=x: must be the group's settings"),
        (tmp_path / "nothing", "has neither config.yaml nor zo.yaml"),
        (directory_of(icl), "optimizer=icl reads the training examples at every evaluation"),
    ):
        assert why in refused(capsys, source, other)


def test_conversations_are_trained_at_all_messages_and_answered_at_the_last(tmp_path, capsys):
    """A run that is interrupted goes on with the same losses; other messages are another run.

    The answer is what transformers writes to the template's prompt, and is that of the run's export, too.
    """
    base = shutil.copytree(REVIEWS_TINY, tmp_path / "base")
    words = AutoTokenizer.from_pretrained(base)
    words.chat_template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    words.save_pretrained(base)
    talk = [("user", "good film"), ("assistant", "bad"), ("user", "plot"), ("assistant", "good")]
    turns = [{"role": role, "content": text} for role, text in talk]
    file, asked = tmp_path / "chats.jsonl", tmp_path / "asked.jsonl"
    file.write_text("".join(json.dumps({"messages": turns}) + "\n" for _ in range(40)))
    asked.write_text(json.dumps({"messages": turns[:3]}))
    own = [f"model.path={base}", "task=completion", f"task.path={file}", "batch_size=4", "steps=4"]
    own += ["eval_every=4", "task.max_new_tokens=2"]
    every, last = (configured(tmp_path / "out", *own, f"task.turns={of}") for of in ("all", "last"))
    with stopped_after(2):
        run(every)
    losses = [row["train/loss"] for row in rows_once_run(every)[1:]]
    again = configured(tmp_path / "again", *own, "task.turns=all")
    assert losses == [row["train/loss"] for row in rows_once_run(again)[1:]]
    assert losses != [row["train/loss"] for row in rows_once_run(last)[1:]]
    weights = tmp_path / "weights"
    assert export.main([str(directory_of(every)), "--out", str(weights)]) == 0
    words = AutoTokenizer.from_pretrained(weights)
    prompt = words.apply_chat_template(turns[:3], tokenize=False, add_generation_prompt=True)
    ids = words(prompt, add_special_tokens=False, return_tensors="pt")
    model = AutoModelForCausalLM.from_pretrained(weights, dtype="auto")
    made = model.generate(**ids, max_new_tokens=2, do_sample=False)[0, ids["input_ids"].shape[1] :]
    for source in (directory_of(every), weights):
        (row,), _ = predicted(capsys, source, asked)
        assert row["predicted"] == words.decode(made, skip_special_tokens=True) != ""
        assert json.loads(row["messages"]) == turns[:3]
