"""hydra/launcher=local for real: stopped and continued, and detached; tests of launch.measured make whole sweeps."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch import status, submit
from launch.sweep import Sweep
from tests.launch.test_standings import states

pytestmark = pytest.mark.process


def wait_until(condition, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def changed(overrides, *others):
    """Overrides with others in the place of those of the same key: a command may give a key once."""
    keys = [other.split("=")[0] for other in others]
    return [o for o in overrides if o.split("=")[0] not in keys] + [*others]


@pytest.fixture
def pair(grid):
    return changed(grid, "seed=0")


def test_ctrl_c_stops_the_runs_and_says_that_the_same_command_continues_them(pair):
    long = changed(pair, "optimizer=mezo", "steps=100000", "eval_every=100000")
    (run,) = Sweep.of(long).runs
    command = [sys.executable, "train.py", "-m", *long, "hydra/launcher=local"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], text=True, **pipes)
    wait_until(lambda: (run.directory / "metrics.jsonl").exists())
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert "The same command continues them" in output
    assert states([run]) == ["interrupted"]


def test_detached_runs_go_on_without_the_submitter_and_are_not_submitted_twice(pair, capsys):
    runs = Sweep.of(pair).runs
    assert submit.main([*pair, "hydra/launcher=local"]) == 0  # one at once: the other one waits
    assert "2 runs: 2 missing; 2 submitted" in capsys.readouterr().out
    assert set(states(runs)) <= {"queued", "running", "finished"}
    assert submit.main([*pair, "hydra/launcher=local"]) == 0
    assert "; 0 submitted" in capsys.readouterr().out
    wait_until(lambda: states(runs) == ["finished"] * 2)
    assert status.main(pair) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 of 2 runs done: 2 finished"
    assert [len((r.directory / "attempts.jsonl").read_text().splitlines()) for r in runs] == [1, 1]
