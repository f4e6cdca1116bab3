"""Several runs in one process: one that fails ends no other, what differs is named, and a table ends them."""

import os
import signal

import pytest

from zo.run import loop
from zo.run.multirun import Multirun, differences
from zo.run.signals import INTERRUPTED

NO_FILE = "task.data_files.train=/no/such/file.csv"


def test_a_run_that_cannot_be_made_ends_no_other(make_run, capsys):
    runs = [make_run(NO_FILE), make_run("task.labels=[8,9]"), make_run("steps=1")]
    assert Multirun.of(runs).run() == 1
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].startswith("3 runs, one after the other; they differ in ")
    assert "run 3 of 3: " in shown.out
    assert lines[-3] == "1 of 3 runs ended, 2 failed"
    assert lines[-2].startswith("failed: run 1 of 3: train=/no/such/file.csv ")
    assert "task.data_files.train: there is no file" in lines[-2]
    assert "task.labels: row " in lines[-1]
    assert "Traceback" not in shown.err


def test_a_defect_ends_no_other(make_run, monkeypatch, capsys):
    made, seen = loop._step, []

    def step(session, *rest):
        seen.append(session)
        return 1 / 0 if len(seen) == 1 else made(session, *rest)

    monkeypatch.setattr(loop, "_step", step)
    runs = [make_run("seed=0", "steps=1"), make_run("seed=1", "steps=1")]
    assert Multirun.of(runs).run() == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "failed: run 1 of 2: seed=0: ZeroDivisionError: division by zero"


def test_the_table_has_a_row_per_run_and_says_where_it_is(make_run, tmp_path, capsys):
    runs = [make_run("steps=1", f"optimizer.k={k}") for k in (1, 2)]
    multirun = Multirun.of(runs)
    assert multirun.run() == 0
    lines = capsys.readouterr().out.splitlines()
    heading = next(line for line in lines if line.startswith("k "))
    assert heading.split() == ["k", "test", "val.", "step", "in", f"{tmp_path}/out/"]
    rows = lines[lines.index(heading) + 1 :]
    assert [row.split()[0] for row in rows[:2]] == ["1", "2"]
    test = multirun.summaries[1]["best/test_accuracy"]
    assert f"{test:.1%}" in rows[1]
    directories = {path.name for path in (tmp_path / "out").glob("bszo-*")}
    assert {row.split()[-1] for row in rows[:2]} == directories


def test_a_cell_that_repeats_a_run_is_left_out(make_run):
    runs = [make_run("optimizer=zero_shot", f"lr_index={i}", "lr=null") for i in (0, 1, 2)]
    assert len(Multirun.of(runs).runs) == 1


@pytest.mark.process
def test_ctrl_c_stops_all_and_the_same_command_goes_on(make_run, monkeypatch, capsys):
    runs = [make_run(f"seed={seed}") for seed in (0, 1, 2)]
    with monkeypatch.context() as interrupted:
        made, steps = loop._step, []

        def step(session, *rest):
            steps.append(session)
            if len(steps) == 7:  # the second run's third
                os.kill(os.getpid(), signal.SIGINT)
            return made(session, *rest)

        interrupted.setattr(loop, "_step", step)
        assert Multirun.of(runs).run() == INTERRUPTED
    shown = capsys.readouterr()
    assert "stopped at step 3, saved; the same command goes on from there" in shown.err
    assert shown.err.endswith("stopped; 1 ended, 2 to go; the same command goes on\n")
    assert "1 of 3 runs ended, 0 failed" in shown.out
    assert "run 3 of 3" not in shown.out
    again = [make_run(f"seed={seed}") for seed in (0, 1, 2)]
    assert Multirun.of(again).run() == 0
    assert "goes on after step 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        (["optimizer.k=1", "optimizer.k=2"], [{"k": "1"}, {"k": "2"}]),
        (["optimizer=mezo", "optimizer=lozo"], [{"optimizer": "mezo"}, {"optimizer": "lozo"}]),
        (
            ["precision.restore=merged", "precision.restore=snapshot"],
            [{"restore": "merged"}, {"restore": "snapshot"}],
        ),
        (["lr=1e-3", "lr=1e-4"], [{"lr": "0.001"}, {"lr": "0.0001"}]),
        (["precision=fp32", "precision=bf16"], [{"precision": "fp32"}, {"precision": "bf16"}]),
        (["seed=0", "seed=0"], [{}, {}]),
    ],
)
def test_what_differs_is_named_and_nothing_that_follows_from_it(make_run, grid, expected):
    assert differences([make_run(override) for override in grid]) == expected
