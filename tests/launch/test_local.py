"""hydra/launcher=local on sweeps of a second: stopped, continued, detached, and stage by stage by launch.measured."""

import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest

from launch import measured, status, submit
from launch.measured import Stage
from launch.sweep import Sweep
from tests.launch.conftest import changed
from tests.launch.test_standings import states
from tests.support.waiting import wait_for


@pytest.fixture
def runs_of(tmp_path):
    """Returns a function that returns the runs of a stage."""
    return lambda stage: Sweep.of([*stage.overrides, f"out={tmp_path / 'out'}"]).runs


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Returns a function that runs the command on some stages."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*stages, arguments=()):
        monkeypatch.setattr(measured, "STAGES", stages)
        return measured.main(["--out", str(tmp_path / "out"), *arguments])

    return run


@pytest.fixture
def small(grid):
    """Returns a function that makes a stage of runs of two steps on the processor."""

    *rest, _ = grid  # out is the command's own
    return lambda name, *others: Stage(name, tuple(changed(rest, *others)), gpu=False)


@pytest.mark.process
def test_the_time_is_up_then_all_is_made_but_what_fails_then_nothing_is_left(
    small, call, runs_of, capfd
):
    first, second = small("first", "seed=0", "optimizer=bszo"), small("second", "seed=1")
    lost = small("lost", "model.path=package:no_such_package/x.gguf")
    assert call(first, second, arguments=["--minutes", "0.001"]) == 3
    assert "no time left for first" in capfd.readouterr().out
    runs = [*runs_of(first), *runs_of(second)]
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
    assert len((runs[0].directory / "attempts.jsonl").read_text().splitlines()) == 1


STAND_IN = """
import signal, subprocess, sys, time
from pathlib import Path
here = Path(__file__).parent
def saved(number, frame):
    (here / "saved").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf=true" in sys.argv else saved)
run = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
(here / "run").write_text(str(run.pid))
time.sleep(60)
"""


@pytest.mark.process
@pytest.mark.parametrize("deaf", ["false", "true"])
def test_at_the_deadline_a_stage_saves_and_what_does_not_is_killed(monkeypatch, tmp_path, deaf):
    (tmp_path / "train.py").write_text(STAND_IN)
    monkeypatch.setattr(measured, "TRAIN", tmp_path / "train.py")
    monkeypatch.setattr(measured, "SAVING_S", 1.0)
    args = Namespace(out=tmp_path, processes=1)
    stage = Stage("one", (f"deaf={deaf}",), gpu=False)
    assert measured.make(stage, args, [], time.monotonic() + 4) == measured.TIME_UP
    run = int((tmp_path / "run").read_text())
    assert (tmp_path / "saved").exists() is (deaf == "false")
    if deaf == "true":
        wait_for(lambda: not Path(f"/proc/{run}").exists(), "the run to die", 5)
    else:
        os.kill(run, signal.SIGKILL)


def test_runs_share_a_gpu_by_cores_and_memory_unless_they_are_timed(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(measured, "_gpu_gib", lambda: 10.0)
    packed = Stage("p", ())
    assert measured.slots(Stage("t", (), alone=True), ["0"], 4) == 1
    assert measured.slots(packed, ["0"], None) == 3
    assert measured.slots(packed, ["0"], 5) == 5
    monkeypatch.setattr(measured, "_gpu_gib", lambda: 139.0)
    assert measured.slots(packed, ["0", "1"], None) == 8
    assert measured.slots(Stage("c", (), gpu=False), [], None) == 16


@pytest.fixture
def pair(grid):
    return changed(grid, "seed=0")


@pytest.mark.process
def test_ctrl_c_stops_the_runs_and_says_that_the_same_command_continues_them(pair):
    long = changed(pair, "optimizer=mezo", "steps=100000", "eval_every=100000")
    (run,) = Sweep.of(long).runs
    command = [sys.executable, "train.py", "-m", *long, "hydra/launcher=local"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], text=True, **pipes)
    wait_for((run.directory / "metrics.jsonl").exists, "the first step")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert "The same command continues them" in output
    assert states([run]) == ["interrupted"]


@pytest.mark.process
def test_detached_runs_go_on_without_the_submitter_and_are_not_submitted_twice(pair, capsys):
    runs = Sweep.of(pair).runs
    assert submit.main([*pair, "hydra/launcher=local"]) == 0  # one at once: the other one waits
    assert "2 runs: 2 missing; 2 submitted" in capsys.readouterr().out
    assert set(states(runs)) <= {"queued", "running", "finished"}
    assert submit.main([*pair, "hydra/launcher=local"]) == 0
    assert "; 0 submitted" in capsys.readouterr().out
    wait_for(lambda: states(runs) == ["finished"] * 2, "both to finish")
    assert status.main(pair) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 of 2 runs done: 2 finished"
    assert [len((r.directory / "attempts.jsonl").read_text().splitlines()) for r in runs] == [1, 1]
