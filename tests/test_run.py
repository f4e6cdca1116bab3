"""Runs: what the loop writes, when it stops, and that it repeats itself bit for bit."""

import json
import os
from pathlib import Path

import pytest

from zo import run as loop
from zo.run import run

NO_TIMES = ("time/", "mem/")


def rows_of(cfg):
    (directory,) = Path(cfg.out).glob(f"{cfg.optimizer.name}-*")
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def without_times(rows):
    return [{k: v for k, v in row.items() if not k.startswith(NO_TIMES)} for row in rows]


@pytest.mark.parametrize(("optimizer", "forwards"), [("mezo", 2), ("bszo", 3), ("bszo_b", 4)])
def test_a_run_logs_every_step_and_every_evaluation(make_run, optimizer, forwards):
    cfg = make_run(f"optimizer={optimizer}")
    summary = run(cfg)
    rows = rows_of(cfg)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["train/forwards"] for row in rows] == [forwards * i for i in (1, 2, 3, 4)]
    assert ["eval/val_accuracy" in row for row in rows] == [False, True, False, True]
    assert all(0 < row["train/loss"] < 5 for row in rows)
    assert summary["run/status"] == "finished"
    assert summary["run/forwards_per_step"] == forwards
    assert summary["best/step"] in (2, 4)


def test_test_is_scored_only_on_a_new_best_and_the_first_best_is_reported(make_run):
    cfg = make_run("optimizer=mezo", "steps=8", "eval_every=1")
    summary = run(cfg)
    best = -1.0
    for row in rows_of(cfg):
        new_best = row["eval/val_accuracy"] > best
        assert ("eval/test_accuracy" in row) == new_best
        if new_best:
            best, step, test = row["eval/val_accuracy"], row["step"], row["eval/test_accuracy"]
    assert (summary["best/step"], summary["best/val_accuracy"]) == (step, best)
    assert summary["best/test_accuracy"] == test
    hits = [
        a == b
        for a, b in zip(summary["best/test_predictions"], summary["test/labels"], strict=True)
    ]
    assert sum(hits) / len(hits) == test


def test_the_same_configuration_gives_the_same_numbers(make_run):
    cfg = make_run("optimizer=bszo")
    run(cfg)
    first = without_times(rows_of(cfg))
    run(make_run("optimizer=bszo", "resume=false"))
    assert without_times(rows_of(cfg)) == first


def test_another_seed_gives_other_numbers(make_run, tmp_path):
    one = make_run("optimizer=mezo", f"out={tmp_path / 'a'}")
    two = make_run("optimizer=mezo", "seed=1", f"out={tmp_path / 'b'}")
    run(one)
    run(two)
    assert [r["train/loss"] for r in rows_of(one)] != [r["train/loss"] for r in rows_of(two)]


def test_a_finished_run_is_not_run_again(make_run, capsys, monkeypatch):
    cfg = make_run("optimizer=mezo")
    summary = run(cfg)
    monkeypatch.setattr(loop.Session, "open", lambda cfg: pytest.fail("it was run again"))
    assert run(cfg) == summary
    assert "finished before" in capsys.readouterr().out


def test_patience_stops_a_run(make_run):
    cfg = make_run("optimizer=mezo", "steps=20", "eval_every=1", "patience=3", "lr=1e-12")
    summary = run(cfg)  # such a small step changes no prediction: the first evaluation stays best
    assert summary["run/stop_reason"] == "patience"
    assert summary["run/steps"] == 4
    assert summary["best/step"] == 1


def test_a_non_finite_loss_ends_the_run_as_collapsed_with_its_step(make_run, capsys):
    summary = run(make_run("optimizer=mezo", "lr=1e30", "patience=null"))
    assert summary["run/status"] == "collapsed"
    assert summary["run/collapse_step"] == 2  # step 1 moves the weights out of range
    assert summary["run/steps"] == 1
    assert "collapsed at step 2" in capsys.readouterr().out


def test_zero_shot_makes_no_step_and_one_evaluation(make_run):
    cfg = make_run("optimizer=zero_shot", "lr=null")
    summary = run(cfg)
    (row,) = rows_of(cfg)
    assert row["step"] == 0
    assert summary["run/steps"] == summary["best/step"] == summary["run/forwards"] == 0
    assert summary["best/test_n"] == 48


def test_an_exception_leaves_a_failed_status_and_the_run_can_start_again(make_run, monkeypatch):
    cfg = make_run("optimizer=mezo")
    with monkeypatch.context() as broken:
        broken.setattr(loop, "_step", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(cfg)
    (directory,) = Path(cfg.out).glob("mezo-*")
    status = json.loads((directory / "status.json").read_text())
    assert status == {"run/status": "failed", "run/error": "ZeroDivisionError: division by zero"}
    assert run(cfg)["run/status"] == "finished"


@pytest.mark.parametrize("restore", ["subtract", "snapshot"])
def test_bf16_runs(make_run, restore):
    summary = run(make_run("optimizer=bszo", "precision=bf16", f"precision.restore={restore}"))
    assert summary["run/status"] == "finished"


def test_missing_data_is_one_sentence_and_leaves_nothing_behind(make_run):
    cfg = make_run("task.data_files.train=/no/such/file.csv")
    with pytest.raises(loop.UNUSABLE, match=r"task\.data_files"):
        run(cfg)
    assert not os.path.exists(cfg.out)
