"""hydra/launcher=local on sweeps of a second: stopped, continued, detached, and stage by stage by launch.measured."""

import json
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest

from launch import ROOT, measured, status, submit
from launch.measured import Stage
from launch.sweep import Sweep
from tests.launch.conftest import attempts, changed, states
from tests.support.waiting import wait_for


@pytest.mark.process
def test_the_time_is_up_then_all_is_made_but_what_fails_then_nothing_is_left(
    grid, monkeypatch, capfd
):
    *rest, out = grid
    first = changed(rest, "seed=0", "optimizer=bszo")
    second = changed(rest, "seed=1")
    lost = changed(rest, "model.path=package:no_such_package/x.gguf")
    runs = [*Sweep.of([*first, out]).runs, *Sweep.of([*second, out]).runs]

    def call(*stages, arguments=()):
        made = [Stage(str(i), tuple(of), gpu=False) for i, of in enumerate(stages)]
        monkeypatch.setattr(measured, "STAGES", made)
        return measured.main(["--out", out.removeprefix("out="), *arguments])

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert call(first, second, arguments=["--minutes", "0.001"]) == 3
    assert "no time left for 0" in capfd.readouterr().out
    assert states(runs) == ["missing"] * 3
    (runs[2].directory / "predictions.json").mkdir(parents=True)  # a file cannot be written there
    assert call(lost, first, second) == 1
    assert states(runs) == ["finished", "finished", "failed"]
    told = capfd.readouterr()
    assert "no_such_package" in told.err
    assert "failed: IsADirectoryError" in told.out
    given = [json.loads((run.directory / "job.json").read_text())["when"] for run in runs]
    assert given[0] < min(given[1:])
    assert call(first) == 0
    assert attempts(runs[0]) == 1


STAND_IN = """
import pathlib, signal, subprocess, time
run = subprocess.Popen(["sleep", "60"], start_new_session=True)
pathlib.Path(__file__).with_name("run").write_text(str(run.pid))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(60)
"""


@pytest.mark.process
def test_a_stage_that_does_not_save_at_the_deadline_is_killed_with_its_run(monkeypatch, tmp_path):
    """A stand-in for the stage, which is deaf to SIGTERM."""
    (tmp_path / "train.py").write_text(STAND_IN)
    monkeypatch.setattr(measured, "TRAIN", tmp_path / "train.py")
    monkeypatch.setattr(measured, "SAVING_S", 1.0)
    args = Namespace(out=tmp_path, processes=1)
    stage = Stage("one", (), gpu=False)
    assert measured.make(stage, args, [], time.monotonic() + 4) == measured.TIME_UP
    run = int((tmp_path / "run").read_text())
    wait_for(lambda: not Path(f"/proc/{run}").exists(), "the run to die", 5)


@pytest.mark.process
def test_ctrl_c_stops_the_runs_and_says_that_the_same_command_continues_them(grid):
    keys = ("seed=0", "optimizer=mezo", "steps=100000", "eval_every=100000")
    long = changed(grid, *keys, "hydra/launcher=local")
    (run,) = Sweep.of(long).runs
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(
        [sys.executable, "train.py", "-m", *long], cwd=ROOT, text=True, **pipes
    )
    wait_for((run.directory / "metrics.jsonl").exists, "the first step")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert "The same command continues them" in output
    assert states([run]) == ["interrupted"]


@pytest.mark.process
def test_detached_runs_go_on_without_the_submitter_and_are_not_submitted_twice(grid, capsys):
    pair = changed(grid, "seed=0")
    runs = Sweep.of(pair).runs
    assert submit.main([*pair, "hydra/launcher=local"]) == 0  # one at once: the other one waits
    assert "2 runs: 2 missing; 2 submitted" in capsys.readouterr().out
    assert set(states(runs)) <= {"queued", "running", "finished"}
    assert submit.main([*pair, "hydra/launcher=local"]) == 0
    assert "; 0 submitted" in capsys.readouterr().out
    wait_for(lambda: states(runs) == ["finished"] * 2, "both to finish")
    assert status.main(pair) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 of 2 runs done: 2 finished"
    assert [attempts(run) for run in runs] == [1, 1]
