"""Runs: what the loop writes, when it stops, and that it repeats itself bit for bit."""

import errno
import itertools
import json
import os
import re
from dataclasses import replace

import pytest

from tests.support.victims import what_it_came_to
from zo.lm.scoring import CandidateScorer
from zo.run import loop
from zo.run.assembly import Session
from zo.run.directory import DirectoryError, directory_of
from zo.run.rows import read_rows
from zo.run.runner import run
from zo.run.tracking import read_status
from zo.tasks.batches import batch_indices


def rows_of(cfg):
    return read_rows(directory_of(cfg))


@pytest.mark.parametrize(
    ("overrides", "forwards"),
    [
        (["optimizer=bszo"], 3),
        (["optimizer=mezo_adam", "precision=fp16", "lr=1e-7", "optimizer.state_dtype=float32"], 2),
        (["optimizer=adam"], 1),
    ],
)
def test_a_run_logs_every_step_and_every_evaluation(make_run, overrides, forwards):
    cfg = make_run(*overrides)
    summary = run(cfg)
    rows = rows_of(cfg)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["train/forwards"] for row in rows] == [forwards * i for i in (1, 2, 3, 4)]
    assert ["eval/val_accuracy" in row for row in rows] == [False, True, False, True]
    assert all(0 < row["train/loss"] < 5 for row in rows)
    assert summary["run/status"] == "finished"
    assert summary["run/forwards_per_step"] == forwards
    assert summary["best/step"] in (2, 4)
    if forwards == 1:
        session = Session.open(cfg)
        indices = batch_indices(len(session.train), cfg.batch_size, cfg.seed, 0)
        loss = session.loss_of([session.train[i] for i in indices])
        assert rows[0]["train/loss"] == pytest.approx(loss(), rel=1e-5)


def test_a_loss_in_parts_is_the_mean_over_all_tokens_of_the_mini_batch(make_run):
    words = "task.candidates=[' terrible',' great film indeed']"  # of one and of three tokens
    session = Session.open(make_run("task.objective=lm", "distributed.shards=4", words))
    parts, session.shards = session.loss_of(session.train[:16])(), 1
    assert parts == pytest.approx(session.loss_of(session.train[:16])(), rel=1e-5)


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


def test_a_run_that_is_begun_anew_gives_the_same_numbers(finished):
    directory, timed = directory_of(finished), rows_of(finished)
    first = what_it_came_to(directory)
    run(replace(finished, resume=False))
    assert rows_of(finished) != timed, "it was made again"
    assert what_it_came_to(directory) == first


def test_patience_stops_a_run_and_it_says_so(make_run, capsys):
    cfg = make_run("optimizer=mezo", "steps=20", "eval_every=1", "patience=3", "lr=1e-12")
    summary = run(cfg)  # such a small step changes no prediction: the first evaluation stays best
    assert (summary["run/stop_reason"], summary["run/steps"]) == ("patience", 4)
    assert summary["best/step"] == 1
    told = "stopped early at step 4: patience=3, no better validation accuracy since step 1. Test "
    assert told in capsys.readouterr().out


def test_an_exception_leaves_a_failed_status_and_the_run_can_start_again(make_run, monkeypatch):
    cfg = make_run("optimizer=mezo")
    with monkeypatch.context() as broken:
        broken.setattr(loop, "_step", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(cfg)
    status = json.loads((directory_of(cfg) / "status.json").read_text())
    assert status == {"run/status": "failed", "run/error": "ZeroDivisionError: division by zero"}
    assert "1 / 0" in (directory_of(cfg) / "error.txt").read_text()
    assert run(cfg)["run/status"] == "finished"


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


@pytest.mark.parametrize(("optimizer", "eval_every"), [("mezo_adam", 1), ("adam", 2)])
def test_adam_in_fp16_ends_as_a_collapse_with_its_step(make_run, capsys, optimizer, eval_every):
    """Its moments underflow at the first step. Found there if weights are looked at, else by the next loss."""
    cfg = make_run(f"optimizer={optimizer}", "precision=fp16", f"eval_every={eval_every}")
    summary = run(cfg)
    assert (summary["run/status"], summary["run/stop_reason"]) == ("collapsed", "non_finite")
    assert (summary["run/collapse_step"], summary["run/steps"]) == (eval_every, 1)
    at_once, later = r"parameter \S+ is (nan|inf) at step 1", "loss is nan at step 2"
    assert re.fullmatch(at_once if eval_every == 1 else later, summary["run/collapse_what"])
    assert f"collapsed at step {eval_every}" in capsys.readouterr().out
    (row,) = rows_of(cfg)
    assert not any(key.startswith("eval/") for key in row)
    assert "best/step" not in summary
    assert json.loads(json.dumps(summary)) == summary, "no NaN in what is reported"


def test_a_weight_that_is_not_finite_is_a_collapse_at_the_next_evaluation(make_run, monkeypatch):
    """The position of the last token of the longest possible input: no loss ever sees it."""
    name, made = "model.decoder.embed_positions.weight", loop._step

    def then_spoilt(session, *rest):
        metrics, params = made(session, *rest), session.assembly.params
        if session.assembly.optimizer.step_index == 3:
            params.tensors[params.names.index(name)].view(-1)[-1] = float("-inf")
        return metrics

    monkeypatch.setattr(loop, "_step", then_spoilt)
    cfg = make_run("optimizer=mezo", "steps=8", "eval_every=2", "precision.restore=snapshot")
    summary = run(cfg)
    assert summary["run/collapse_what"] == f"parameter {name} is inf at step 4"
    assert (summary["run/collapse_step"], summary["run/steps"]) == (4, 4)
    rows = rows_of(cfg)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]  # the step itself was made, and is logged
    assert ["eval/val_accuracy" in row for row in rows] == [False, True, False, False]
    assert summary["best/step"] == 2  # what was found before stays


@pytest.mark.parametrize(("split", "calls"), [("validation", 1), ("test", 2)])
def test_a_loss_of_an_evaluation_that_is_not_finite_is_a_collapse(
    make_run, monkeypatch, split, calls
):
    evaluate, count = CandidateScorer.evaluate, itertools.count(1)

    def overflowing(*arguments):
        found = evaluate(*arguments)
        return replace(found, loss=float("nan")) if next(count) == calls else found

    monkeypatch.setattr(CandidateScorer, "evaluate", overflowing)
    summary = run(make_run("optimizer=mezo"))
    assert summary["run/collapse_what"] == f"{split} loss is nan at step 2"
    assert (summary["run/collapse_step"], summary["run/steps"]) == (2, 2)
    assert "best/step" not in summary
