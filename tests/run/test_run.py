"""Runs: what fits together, what the loop writes, when it stops, and that it repeats itself bit for bit."""

import csv
import errno
import itertools
import json
import os
import random
import re
from dataclasses import replace
from itertools import chain

import pytest
import torch
from sklearn.metrics import f1_score

from tests.conftest import FINISHED, write_reviews
from tests.support.runs import rows_of
from zo.lm.config import ModelError
from zo.lm.scoring.candidates import CandidateScorer
from zo.run.assembly import Assembly, Session
from zo.run.fit import measured
from zo.run.logs.tracking import read_status
from zo.run.results.replay import replay_to
from zo.run.runner import run
from zo.run.store.directory import DirectoryError, directory_of
from zo.run.store.rows import trajectory_of, write_rows
from zo.tasks.examples import batch_indices


def test_a_run_logs_every_step_and_every_evaluation(make_run):
    cfg = make_run("optimizer=bszo")
    summary, rows, session = run(cfg), rows_of(cfg), Session.open(cfg)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["train/forwards"] for row in rows] == [3, 6, 9, 12]
    assert ["eval/val_accuracy" in row for row in rows] == [False, True, False, True]
    assert summary["run/status"] == "finished"
    assert summary["run/forwards_per_step"] == 3
    indices = batch_indices(len(session.train), cfg.batch_size, cfg.seed, 0)
    executor = session.executor([session.train[i] for i in indices])
    assert rows[0]["train/loss"] == pytest.approx(executor.alone(), rel=1e-5)


def test_a_loss_in_parts_is_the_mean_over_all_tokens_of_the_mini_batch(make_run):
    words = "task.candidates=[' terrible',' great film indeed']"  # of one and of three tokens
    session = Session.open(make_run("task.objective=lm", "distributed.shards=4", words))
    assert {len(e.candidate_ids) for e in session.train} == {1}, "trains on the true one alone"
    assert {len(e.candidate_ids) for e in session.validation + session.test} == {2}
    parts, session.shards = session.executor(session.train[:16]).alone(), 1
    assert parts == pytest.approx(session.executor(session.train[:16]).alone(), rel=1e-5)


def test_test_is_scored_only_on_a_new_best_and_the_first_best_is_reported(finished):
    summary, best = run(finished), -1.0
    assert sum("eval/test_accuracy" in row for row in rows_of(finished)) < 4
    for row in rows_of(finished):
        new_best = row["eval/val_accuracy"] > best
        assert ("eval/test_accuracy" in row) == new_best
        if new_best:
            best, step, test = row["eval/val_accuracy"], row["step"], row["eval/test_accuracy"]
    assert (summary["best/step"], summary["best/val_accuracy"]) == (step, best)
    assert summary["best/test_accuracy"] == test
    pairs = list(zip(summary["best/test_predictions"], summary["test/labels"], strict=True))
    assert sum(a == b for a, b in pairs) / len(pairs) == test


@pytest.mark.parametrize(("chosen_by", "sign"), [("macro_f1", 1), ("loss", -1)])
def test_the_best_step_is_the_one_that_select_by_says(make_run, tmp_path, capsys, chosen_by, sign):
    """Words say nothing of the labels, seven of ten of which are one."""
    rng = random.Random(1)
    rows = [(rng.choice(["fine", "dull", "long"]) * 2, int(rng.random() < 0.7)) for _ in range(200)]
    data = f"task.data_files.train={write_reviews(tmp_path / 'guesses.csv', rows)}"
    cfg = make_run(*FINISHED, data, "lr=1e-2", "steps=8", f"task.select_by={chosen_by}")
    summary, rows = run(cfg), rows_of(cfg)
    merits = [sign * row[f"eval/val_{chosen_by}"] for row in rows]
    best = merits.index(max(merits))
    accuracies = [row["eval/val_accuracy"] for row in rows]
    assert accuracies.index(max(accuracies)) != best, "accuracy chooses another one"
    assert summary["best/step"] == best + 1
    assert summary[f"best/val_{chosen_by}"] == sign * merits[best]
    assert summary["best/val_accuracy"] == accuracies[best]
    with (directory_of(cfg) / "predictions.csv").open() as file:
        validated = [row for row in csv.DictReader(file) if row["split"] == "validation"]
    if chosen_by == "macro_f1":
        both = ([row[key] for row in validated] for key in ("label", "predicted"))
        assert f1_score(*both, average="macro") == pytest.approx(merits[best])
    assert (
        f"best {chosen_by} {sign * merits[best]:.4g} at step {best + 1}" in capsys.readouterr().out
    )
    (directory_of(cfg) / "status.json").unlink()
    write_rows(directory_of(cfg), rows[:best])  # an interruption before the best step
    assert run(cfg)["best/step"] == best + 1


def test_predictions_are_stored_with_row_text_label_and_probability(finished, capsys):
    """In the order of the splits; the summary has their F1 and confusion matrix, and so has the last line."""
    directory, session = directory_of(finished), Session.open(finished)
    (directory / "status.json").unlink()
    summary = run(finished)  # reads its best step's file
    with (directory / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["split"] for row in rows] == ["test"] * 48 + ["validation"] * 32
    for row, example in zip(rows, [*chain(*session.examples.values())][32:], strict=False):
        label = ("terrible", "great")[example.label]
        expected = (str(example.row), example.fields["text"], label)
        assert (row["row"], row["text"], row["label"]) == expected
    counts = [[0, 0], [0, 0]]
    for row in rows[:48]:
        counts[row["label"] == "great"][row["predicted"] == "great"] += 1
        assert 0.5 <= float(row["probability"]) <= 1
    assert summary["best/test_confusion"] == counts
    assert summary["test/classes"] == ["terrible", "great"]
    replay_to(session.assembly, trajectory_of(directory), summary["best/step"])
    again = session.evaluator.evaluate(session.test, finished.eval_tokens)
    stored = [float(row["probability"]) for row in rows[:48]]
    assert [round(p, 6) for p in again.probabilities] == stored
    ending = f"macro F1 {summary['best/test_macro_f1']:.1%}, balanced accuracy "
    assert ending in capsys.readouterr().out
    (directory / "predictions.csv").write_text("another step's")
    (directory / "status.json").unlink()
    assert run(finished)["best/test_confusion"] == counts
    with (directory / "predictions.csv").open() as file:
        again = list(csv.DictReader(file))
    assert again == [{**row, "probability": ""} for row in rows], "the row has no probabilities"


def test_patience_stops_a_run_and_it_says_so(make_run, capsys):
    cfg = make_run("optimizer=mezo", "steps=20", "eval_every=1", "patience=3", "lr=1e-12")
    summary = run(cfg)  # such a small step changes no prediction: the first evaluation stays best
    assert (summary["run/stop_reason"], summary["run/steps"]) == ("patience", 4)
    assert summary["best/step"] == 1
    told = "stopped early at step 4: patience=3, no better validation accuracy since step 1. Test "
    assert told in capsys.readouterr().out


def test_steps_that_measure_nothing_are_counted_whatever_the_objective(make_run, capsys):
    summary = run(make_run("optimizer=mezo", "optimizer.eps=1e-300"))
    assert summary["run/ties"] == 4
    assert "4 of 4 steps had equal losses and moved nothing" in capsys.readouterr().out


@pytest.mark.parametrize(("rows", "then"), [(0, "starts again"), (3, "goes on after step 3")])
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_when_there_is_room(
    make_run, monkeypatch, rows, then
):
    """There is room for no byte of the first row, and for half of the fourth."""
    cfg, write, count = make_run("optimizer=mezo"), os.write, itertools.count()

    def full(file, data):
        if next(count) <= rows:  # the first record is the attempt's
            return write(file, data)
        if rows == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[: len(data) // 2])

    with monkeypatch.context() as small:
        small.setattr(os, "write", full)
        with pytest.raises(DirectoryError) as told:
            run(cfg)
    why = f"{directory_of(cfg)}/metrics.jsonl: {os.strerror(errno.ENOSPC)}; make room and repeat the command, "
    assert str(told.value) == f"{why}which {then}"
    assert read_status(directory_of(cfg))["run/status"] == "failed"
    assert run(cfg)["run/status"] == "finished"
    assert [row["step"] for row in rows_of(cfg)] == [1, 2, 3, 4]


def test_adam_in_fp16_ends_as_a_collapse_with_its_step(make_run, capsys):
    """Its moments underflow at the first step, which the next loss shows."""
    cfg = make_run("optimizer=adam", "precision=fp16")
    summary = run(cfg)
    assert (summary["run/status"], summary["run/stop_reason"]) == ("collapsed", "non_finite")
    assert (summary["run/collapse_step"], summary["run/steps"]) == (2, 1)
    assert summary["run/collapse_what"] == "loss is nan at step 2"
    assert "collapsed at step 2" in capsys.readouterr().out
    assert len(rows_of(cfg)) == 1
    assert "best/step" not in summary
    assert json.loads(json.dumps(summary)) == summary, "no NaN in what is reported"


def test_a_weight_that_is_not_finite_is_a_collapse_at_the_next_evaluation(make_run, before_steps):
    """The position of the last token of the longest possible input: no loss ever sees it."""
    name = "model.decoder.embed_positions.weight"

    def spoil(session, step):
        params = session.assembly.params
        if step == 4:
            params.local[params.names.index(name)].view(-1)[-1] = float("-inf")

    before_steps(spoil)
    cfg = make_run("optimizer=mezo", "steps=8", "eval_every=2", "precision.restore=snapshot")
    summary = run(cfg)
    assert summary["run/collapse_what"] == f"parameter {name} is inf at step 4"
    assert (summary["run/collapse_step"], summary["run/steps"]) == (4, 4)
    evaluated = ["eval/val_accuracy" in row for row in rows_of(cfg)]
    assert evaluated == [False, True, False, False]  # the step itself was made, and is logged
    assert summary["best/step"] == 2  # what was found before stays


def test_a_loss_of_an_evaluation_that_is_not_finite_is_a_collapse(make_run, monkeypatch):
    """That of the test split: the second evaluation."""
    evaluate, count = CandidateScorer.evaluate, itertools.count(1)

    def overflowing(*arguments):
        found = evaluate(*arguments)
        return replace(found, loss=float("nan")) if next(count) == 2 else found

    monkeypatch.setattr(CandidateScorer, "evaluate", overflowing)
    summary = run(make_run("optimizer=mezo"))
    assert summary["run/collapse_what"] == "test loss is nan at step 2"
    assert (summary["run/collapse_step"], summary["run/steps"]) == (2, 2)
    assert "best/step" not in summary


def test_memory_and_time_are_estimated_from_the_first_steps_and_nothing_moves(make_run):
    cfg = make_run("optimizer=bszo", "steps=200", "eval_every=40")
    session = Session.open(cfg)
    start = session.assembly.weights_hash()
    times = {"step": [9.0, 1.0, 1.5], "forward": [8.0, 0.9, 0.6], "perturb": [0.2, 0.1, 0.3]}
    line = measured(cfg, session, times, 50)
    about = r"about ([\d.]+) GiB and ([\d.]+) min: 150 steps of 1.5 s (.*), 4 evaluat"
    told = re.match(about, line)
    assert told, line
    passes = session.assembly.optimizer.config.forwards_per_step
    parts = f"({passes} forward passes of {900 / passes:.3g} ms, passes over the weights 200 ms)"
    assert told[3] == parts
    assert float(told[1]) > session.assembly.params.numel * 4 / 2**30
    assert 225 / 60 <= float(told[2]) < 5
    assert session.assembly.weights_hash() == start


@pytest.mark.process
def test_the_estimated_memory_is_what_the_run_then_takes(make_run, capsys):
    over = ("optimizer=mezo", "batch_size=4", "eval_every=50")
    run(make_run(*over, "steps=104"))
    assert "GiB" not in capsys.readouterr().out, "too few steps to be worth it"
    for restore in ("merged", "snapshot"):
        summary = run(make_run(*over, f"precision.restore={restore}", "steps=105", "seed=1"))
        told = re.search(r"about ([\d.]+) GiB", capsys.readouterr().out)
        assert float(told[1]) == pytest.approx(summary["mem/peak_gib"], rel=0.1), restore


@pytest.mark.process
@pytest.mark.parametrize(
    "overrides",
    [
        "adapter=lora optimizer=adam lr=1e-3 checkpoint.keep_best=true",
        "adapter=prefix optimizer=sgd lr=1e-2 model.quantization=int4",
        "adapter=lora optimizer=hizoo lr=1e-3 model.quantization=int8 precision=bf16"
        " precision.noise=philox precision.rounding=stochastic adapter.dtype=model",
        "adapter=ia3 optimizer=hizoo lr=1e-3 model.quantization=int8 precision=fp16",
        "adapter=scales optimizer=mezo precision=fp16 model.quantization=int8",
        "adapter=none optimizer=bszo lr=1e-4 model.quantization=int4",
    ],
)
def test_models_adapters_quantisation_methods_and_precisions_go_together(make_run, overrides):
    cfg = make_run(*overrides.split(), "steps=2")
    summary = run(cfg)
    assert (summary["run/status"], summary["run/steps"]) == ("finished", 2)
    assembly = Assembly.of(cfg)
    trained = sum(p.numel() for p in assembly.loaded.model.parameters() if p.requires_grad)
    assert assembly.params.numel == trained


@pytest.mark.parametrize("method", ["icl", "linear_probe"])
def test_a_baseline_without_steps_reads_training_examples(make_run, method):
    cfg = make_run(f"optimizer={method}", *["optimizer.k=2"] * (method == "icl"))
    assert cfg.steps == 0
    summary = run(cfg)
    assert (summary["run/status"], summary["run/steps"], summary["best/step"]) == ("finished", 0, 0)
    assert summary["best/test_accuracy"] > 0.7, "a few words tell the made-up labels"
    zero_shot = make_run("optimizer=zero_shot")
    run(zero_shot)
    assert rows_of(cfg)[0]["eval/val_loss"] != rows_of(zero_shot)[0]["eval/val_loss"]


def test_a_methods_advice_names_its_key_and_is_no_raw_warning(make_run, recwarn):
    notes = Assembly.of(make_run("optimizer=bszo", "adapter=lora")).loaded.notes
    assert notes[-1].startswith("optimizer.prior_std: √(n / 10⁶) is")
    assert not [w for w in recwarn if "prior_std" in str(w.message)]


def test_a_layer_that_computes_with_what_it_has_kept_of_its_weight_is_refused(
    make_run, monkeypatch
):
    def forward(layer, x):
        kept = vars(layer).setdefault("kept", layer.weight.detach().clone())
        return torch.nn.functional.linear(x, kept, layer.bias)

    monkeypatch.setattr(torch.nn.Linear, "forward", forward)
    with pytest.raises(ModelError, match=r"weight changes no loss, where kept of its Linear seems"):
        run(make_run("optimizer=mezo"))
