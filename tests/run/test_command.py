"""Commands: one sentence and exit status 2 for what the user can mend, one line for a signal, at any moment."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from zo import export
from zo.run import assembly, loop, signals
from zo.run.command import make
from zo.run.directory import directory_of
from zo.run.runner import run
from zo.run.signals import Interrupted

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_run_on_a_gpu_that_is_not_there_is_refused(make_run, no_cuda, capsys, device):
    cfg = make_run(f"device={device}")
    assert make(cfg) == 2
    right = "torch finds no CUDA device here; give cpu or auto"
    assert capsys.readouterr().err == f"device={device}: {right}\n"
    assert not Path(cfg.out).exists(), "nothing is left behind"


def test_an_export_to_a_gpu_that_is_not_there_is_refused(make_run, no_cuda, capsys, tmp_path):
    cfg = make_run()
    run(cfg)
    command = [str(directory_of(cfg)), "--out", str(tmp_path / "weights"), "--device", "cuda"]
    capsys.readouterr()
    assert export.main(command) == 2
    assert capsys.readouterr().err.startswith("device=cuda: torch finds no CUDA device here")
    assert not (tmp_path / "weights").exists()


def test_a_gpu_beyond_the_last_one_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(assembly.DeviceError, match="device=cuda:7: torch finds cuda:0 to cuda:1"):
        assembly.find_device("cuda:7")
    assert assembly.find_device("cuda:1") == torch.device("cuda:1")


def test_more_threads_than_cores_are_not_used(monkeypatch, capsys):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert assembly._threads(1) == 1
    assert capsys.readouterr().err == ""
    assert assembly._threads(100) == 2
    assert capsys.readouterr().err == "threads=100: this machine has 2 cores; 2 used\n"


def test_the_title_is_shown_before_anything_is_loaded(make_run, capsys, monkeypatch):
    cfg = make_run()
    monkeypatch.setattr(loop.Session, "open", lambda cfg: pytest.fail(capsys.readouterr().out))
    with pytest.raises(pytest.fail.Exception, match=r"bszo reviews-tiny .* lr=0\.0001 seed=0"):
        make(cfg)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_says_at_which_step_and_that_it_goes_on(
    make_run, monkeypatch, capsys, number
):
    made = loop._step

    def step(session, *rest):
        if session.assembly.optimizer.step_index == 2:
            os.kill(os.getpid(), number)
        return made(session, *rest)

    monkeypatch.setattr(loop, "_step", step)
    with pytest.raises(Interrupted):
        make(make_run())
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == "stopped at step 3, saved; the same command goes on from there"


def test_a_second_ctrl_c_is_no_traceback(make_run, monkeypatch, capsys):
    def step(*_):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(loop, "_step", step)
    assert make(make_run()) == 130
    assert capsys.readouterr().err.splitlines()[-1].startswith("stopped before step 1;")


def test_a_run_that_is_loading_stops_at_once(make_run, monkeypatch, capsys):
    def load(cfg):
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("it went on loading")

    monkeypatch.setattr(loop.Session, "open", load)
    with pytest.raises(Interrupted):
        make(make_run())
    assert capsys.readouterr().err == "stopped before step 1; the same command starts again\n"


def test_handlers_of_a_command_are_put_back_after_a_run(make_run, monkeypatch):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        signals.end_at_once()
        at_once = signal.getsignal(signal.SIGINT)
        make(make_run())
        assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == at_once
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.process
@pytest.mark.parametrize("seconds", [0.3, 1, 2, 4])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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
