"""hydra/launcher=local on sweeps of a second: stopped, continued and detached."""

import signal
import subprocess
import sys
from unittest.mock import patch

import pytest

from launch import ROOT, multirun, status, submit
from launch.sweep import Sweep
from tests.launch.conftest import attempts, changed, states
from tests.support.waiting import wait_for
from zo.config import command_line


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
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 143, output
    assert "The same command continues them" in output
    assert states([run]) == ["interrupted"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("seen", "status"), [({"side_effect": KeyboardInterrupt}, 130), ({"return_value": None}, 2)]
)
def test_a_process_that_ctrl_c_or_the_time_limit_ends_while_it_starts_is_not_left(
    grid, monkeypatch, seen, status
):
    asked = command_line.read([*grid, "hydra/launcher=local"], multirun=True)
    popen, started = subprocess.Popen, []
    monkeypatch.setattr(
        subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1]
    )
    monkeypatch.setattr("launch.local.STARTS_WITHIN_S", 0.05)
    with patch("launch.local.holder", **seen):
        assert multirun.make(asked) == status
    assert started[-1].args[1:3] == ["-m", "launch.local"]
    assert started[-1].wait(60) in (-signal.SIGTERM, 128 + signal.SIGTERM)  # early or late


@pytest.mark.process
def test_detached_runs_go_on_without_the_submitter_and_are_not_submitted_twice(grid, capsys):
    pair = changed(grid, "seed=0")
    runs = Sweep.of(pair).runs
    assert submit.main([*pair, "hydra/launcher=local"]) == 0  # one at once: the others wait
    assert "3 runs: 3 missing; 3 submitted" in capsys.readouterr().out
    assert set(states(runs)) <= {"queued", "running", "finished"}
    assert submit.main([*pair, "hydra/launcher=local"]) == 0
    assert "; 0 submitted" in capsys.readouterr().out
    wait_for(lambda: states(runs) == ["finished"] * 3, "all to finish")
    assert status.main(pair) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 of 3 runs done: 3 finished"
    assert [attempts(run) for run in runs] == [1, 1, 1]
