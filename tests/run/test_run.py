"""Runs: what the loop writes, when it stops, and that it repeats itself bit for bit."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from zo.lm.scoring import CandidateScorer
from zo.run import loop
from zo.run.runner import run

NO_TIMES = ("time/", "mem/", "crc")  # and the checksum, which counts them in


def rows_of(cfg):
    (directory,) = Path(cfg.out).glob(f"{cfg.optimizer.name}-*")
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def without_times(rows):
    return [{k: v for k, v in row.items() if not k.startswith(NO_TIMES)} for row in rows]


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
    hits = [
        a == b
        for a, b in zip(summary["best/test_predictions"], summary["test/labels"], strict=True)
    ]
    assert sum(hits) / len(hits) == test


def test_the_same_configuration_gives_the_same_numbers(finished):
    first = rows_of(finished)
    run(replace(finished, resume=False))
    assert rows_of(finished) != first, "it was made again"
    assert without_times(rows_of(finished)) == without_times(first)


def test_a_finished_run_is_not_run_again(finished, capsys, monkeypatch):
    monkeypatch.setattr(loop.Session, "open", lambda cfg: pytest.fail("it was run again"))
    assert run(finished)["run/status"] == "finished"
    assert "finished before: test " in capsys.readouterr().out


def test_patience_stops_a_run_and_it_says_so(make_run, capsys):
    cfg = make_run("optimizer=mezo", "steps=20", "eval_every=1", "patience=3", "lr=1e-12")
    summary = run(cfg)  # such a small step changes no prediction: the first evaluation stays best
    assert summary["run/stop_reason"] == "patience"
    assert summary["run/steps"] == 4
    assert summary["best/step"] == 1
    told = "stopped early at step 4: patience=3, no better validation accuracy since step 1. Test "
    assert told in capsys.readouterr().out


def test_a_non_finite_loss_ends_the_run_as_collapsed_with_its_step(make_run, capsys):
    summary = run(make_run("optimizer=mezo", "lr=1e30", "patience=null"))
    assert summary["run/status"] == "collapsed"
    assert summary["run/collapse_step"] == 2  # step 1 moves the weights out of range
    assert summary["run/steps"] == 1
    assert "collapsed at step 2" in capsys.readouterr().out


def test_an_exception_leaves_a_failed_status_and_the_run_can_start_again(make_run, monkeypatch):
    cfg = make_run("optimizer=mezo")
    with monkeypatch.context() as broken:
        broken.setattr(loop, "_step", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(cfg)
    (directory,) = Path(cfg.out).glob("mezo-*")
    status = json.loads((directory / "status.json").read_text())
    assert status == {"run/status": "failed", "run/error": "ZeroDivisionError: division by zero"}
    assert "1 / 0" in (directory / "error.txt").read_text()
    assert run(cfg)["run/status"] == "finished"


@pytest.mark.parametrize(("optimizer", "eval_every"), [("mezo_adam", 1), ("adam", 2)])
def test_adam_in_fp16_ends_as_a_collapse_with_its_step(make_run, optimizer, eval_every):
    """Its moments underflow at the first step. Found there if weights are looked at, else by the next loss."""
    cfg = make_run(f"optimizer={optimizer}", "precision=fp16", f"eval_every={eval_every}")
    summary = run(cfg)
    assert summary["run/status"] == "collapsed"
    assert summary["run/stop_reason"] == "non_finite"
    assert summary["run/collapse_step"] == eval_every
    expected = (
        r"parameter \S+ is (nan|inf) at step 1" if eval_every == 1 else "loss is nan at step 2"
    )
    assert re.fullmatch(expected, summary["run/collapse_what"])
    rows = rows_of(cfg)
    assert [row["step"] for row in rows] == [1]
    assert not any(key.startswith("eval/") for row in rows for key in row)
    assert "best/step" not in summary
    assert json.loads(json.dumps(summary)) == summary, "no NaN in what is reported"


def spoil(monkeypatch, step: int, name: str, value: float) -> None:
    """Puts one bad number into a tensor after that step of any run."""
    made = loop._step

    def then_spoilt(session, *rest):
        metrics = made(session, *rest)
        if session.assembly.optimizer.step_index == step:
            session.assembly.params.tensors[session.assembly.params.names.index(name)].view(-1)[
                -1
            ] = value
        return metrics

    monkeypatch.setattr(loop, "_step", then_spoilt)


def test_a_weight_that_is_not_finite_is_a_collapse_at_the_next_evaluation(make_run, monkeypatch):
    """The position of the last token of the longest possible input: no loss ever sees it."""
    name = "model.decoder.embed_positions.weight"
    spoil(monkeypatch, 3, name, float("-inf"))
    cfg = make_run("optimizer=mezo", "steps=8", "eval_every=2", "precision.restore=snapshot")
    summary = run(cfg)
    assert summary["run/status"] == "collapsed"
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
