"""What a person sees of runs, also of several in one process: one that fails ends no other, and a table ends them."""

import re
import signal

import pytest

from tests.support.victims import At, armed
from zo.run import loop
from zo.run.logs.tracking import read_status
from zo.run.multirun import Multirun, differences
from zo.run.signals import CTRL_C
from zo.run.store import lock
from zo.run.store.directory import directory_of, freeze


def test_a_run_that_cannot_be_made_or_has_a_defect_ends_no_other_and_a_table_has_the_rest(
    make_run, monkeypatch, capsys
):
    made = loop._step
    monkeypatch.setattr(
        loop, "_step", lambda s, *rest: 1 / 0 if s.assembly.optimizer.seed == 7 else made(s, *rest)
    )
    choices = ("task.data_files.train=/no/such/file.csv", "task.labels=[8,9]", "seed=7", "seed=0")
    multirun = Multirun([make_run(choice, "steps=1") for choice in (*choices, "seed=1")])
    assert multirun.run() == 1
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].startswith("5 runs, one after the other; they differ in ")
    assert "run 4 of 5: " in shown.out
    heading, *rows = lines[lines.index("") + 1 :]
    assert heading.split()[-5:] == ["test", "val.", "step", "in", f"{multirun.runs[0].out}/"]
    for i, row in zip((3, 4), rows, strict=False):
        test = f"{multirun.summaries[i]['best/test_accuracy']:.1%}"
        assert (row.split()[-4], row.split()[-1]) == (test, directory_of(multirun.runs[i]).name)
    assert lines[-4] == "2 of 5 runs ended, 3 failed"
    assert lines[-3].startswith("failed: run 1 of 5: train=/no/such/file.csv ")
    assert "task.data_files.train: there is no file" in lines[-3]
    assert "task.labels: row " in lines[-2]
    assert lines[-1].startswith("failed: run 3 of 5: ")
    assert lines[-1].endswith(" seed=7: ZeroDivisionError: division by zero")
    failed, error = directory_of(multirun.runs[2]), "ZeroDivisionError: division by zero"
    assert read_status(failed) == {"run/status": "failed", "run/error": error}
    assert "1 / 0" in (failed / "error.txt").read_text()


def test_a_cause_that_runs_share_is_tried_once_and_said_once(make_run, capsys):
    bad, nowhere = "task.labels=[8,9]", "task.data_files.train=/no/such/file.csv"
    grid = [(text, f"seed={seed}") for text in (bad, nowhere) for seed in (0, 1, 2)]
    multirun = Multirun([make_run(*choice, "steps=1") for choice in grid])
    assert multirun.run() == 1
    shown = capsys.readouterr()
    assert shown.err.count("task.labels: row ") == 1
    assert shown.err.count("there is no file") == 1
    assert "not tried: 2 runs with the same task and model" in shown.out
    lines = shown.out.splitlines()[-3:]
    assert lines[0] == "0 of 6 runs ended, 6 failed"
    assert all(re.match(r"failed: run [14] of 6: .* and 2 others: task\.", x) for x in lines[1:])


@pytest.mark.process
def test_ctrl_c_stops_all_and_the_same_command_goes_on(make_run, capsys):
    runs = [make_run(f"seed={seed}") for seed in (0, 1, 2)]
    in_second_run = At("zo.run.loop._step", 7, "after", signal.SIGINT)
    with armed(in_second_run):
        assert Multirun(runs).run() == CTRL_C
    shown = capsys.readouterr()
    assert "stopped at step 3, saved; the same command goes on from there" in shown.err
    assert shown.err.endswith("stopped; 1 ended, 2 to go; the same command goes on\n")
    assert "1 of 3 runs ended, 0 failed" in shown.out
    assert "run 3 of 3" not in shown.out
    assert Multirun(runs).run() == 0
    assert "goes on after step 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        (["optimizer=mezo", "optimizer=lozo"], [{"optimizer": "mezo"}, {"optimizer": "lozo"}]),
        (["lr=1e-3", "lr=1e-4"], [{"lr": "0.001"}, {"lr": "0.0001"}]),
        (["seed=0", "seed=0"], [{}, {}]),
    ],
)
def test_what_differs_is_named_and_nothing_that_follows_from_it(make_run, grid, expected):
    runs = [make_run(override) for override in grid]
    assert differences(runs) == expected


def test_a_run_that_another_process_makes_is_no_failure(make_run, capsys):
    runs = [make_run(f"seed={seed}", "steps=1") for seed in (0, 1)]
    freeze(runs[0])
    with lock.held(directory_of(runs[0])):
        assert Multirun(runs).run() == 0
    said = capsys.readouterr().out
    assert "1 of 2 runs ended, 1 made by another process, 0 failed" in said
    assert said.count("run 1 of 2") == 2, "it is tried again at the end"
