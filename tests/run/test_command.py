"""Commands: one sentence and exit status 2 for what the user can mend, one line for a signal, at any moment."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zo.run import loop
from zo.run.command import make
from zo.run.signals import Interrupted

ROOT = Path(__file__).resolve().parents[2]


def test_a_stopped_run_says_at_which_step_and_that_it_goes_on(make_run, monkeypatch, capsys):
    made = loop._step

    def step(session, *rest):
        if session.assembly.optimizer.step_index == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return made(session, *rest)

    monkeypatch.setattr(loop, "_step", step)
    with pytest.raises(Interrupted):
        make(make_run())
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == "stopped at step 3, saved; the same command goes on from there"


def test_a_run_that_is_loading_stops_at_once(make_run, monkeypatch, capsys):
    def load(cfg):
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("it went on loading")

    monkeypatch.setattr(loop.Session, "open", load)
    with pytest.raises(Interrupted):
        make(make_run())
    assert capsys.readouterr().err == "stopped before step 1; the same command starts again\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("seconds", "number"), [(0.3, signal.SIGINT), (1, signal.SIGTERM), (3, signal.SIGINT)]
)
def test_a_signal_while_the_command_starts_is_one_line(tmp_path, seconds, number):
    arguments = ["-m", "seed=0,1", f"out={tmp_path}/out", "tracking.mode=disabled"]
    command = subprocess.Popen(
        [sys.executable, "train.py", *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    time.sleep(seconds)
    command.send_signal(number)
    _, err = command.communicate(timeout=60)
    assert command.returncode in (128 + number, 143)
    assert "Traceback" not in err
    assert "stopped" in err
