"""Requests to stop: heeded where they are asked for, told to whoever listened before, one line of a command."""

# ruff: noqa: PT012  where in the body a request is heeded is what these tests are about

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from zo.run.assembly import Session
from zo.run.command import make
from zo.run.signals import HEEDED, INTERRUPTED, Interrupted, requests


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", HEEDED)
def test_a_signal_is_heeded_only_where_it_is_asked_for(number):
    before = signal.getsignal(number)
    reached = []
    with pytest.raises(Interrupted) as stopped, requests() as asked, suppress(Exception):
        asked.heed()
        send(number)
        reached.append("the next boundary")
        asked.heed()
        reached.append("never")
    assert reached == ["the next boundary"]
    assert stopped.value.code == INTERRUPTED == 143
    assert stopped.value.name == signal.Signals(number).name
    assert signal.getsignal(number) == before


def test_a_second_ctrl_c_does_not_wait(capsys):
    with pytest.raises(KeyboardInterrupt), requests():
        send(signal.SIGINT)
        assert "Ctrl-C again does not wait" in capsys.readouterr().err
        send(signal.SIGINT)
        pytest.fail("it waited")


@pytest.fixture
def submitit():
    """A handler for SIGUSR2 that was there before, and the list of its calls."""
    calls: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: calls.append(number))
    yield calls
    signal.signal(signal.SIGUSR2, before)


def test_a_handler_that_was_there_is_called_once_the_run_has_stopped(submitit):
    with pytest.raises(Interrupted), requests() as asked:
        send(signal.SIGUSR2)
        assert submitit == []
        asked.heed()
    assert submitit == [signal.SIGUSR2]
    with requests():
        send(signal.SIGUSR2)
    assert submitit == [signal.SIGUSR2], "a run that ends before it heeds is simply over"
    send(signal.SIGUSR2)
    assert submitit == [signal.SIGUSR2] * 2, "and is there again"


def test_outside_the_main_thread_there_are_no_requests():
    def listen() -> bool:
        with requests() as asked:
            asked.heed()
        return True

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(listen).result()


def test_a_run_that_is_loading_stops_at_once(make_run, monkeypatch, capsys):
    def load(cfg):
        send(signal.SIGINT)
        pytest.fail("it went on loading")

    monkeypatch.setattr(Session, "open", load)
    with pytest.raises(Interrupted):
        make(make_run())
    assert capsys.readouterr().err == "stopped before step 1; the same command starts again\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("seconds", "number"), [(0.3, signal.SIGINT), (1, signal.SIGTERM), (3, signal.SIGINT)]
)
def test_a_signal_while_the_command_starts_is_one_line(tmp_path, seconds, number):
    arguments = ["train.py", "-m", "seed=0,1", f"out={tmp_path}/out", "tracking.mode=disabled"]
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = subprocess.Popen(
        [sys.executable, *arguments], cwd=Path(__file__).parents[2], text=True, **pipes
    )
    time.sleep(seconds)
    command.send_signal(number)
    _, err = command.communicate(timeout=60)
    assert command.returncode in (128 + number, 143)
    assert "Traceback" not in err
    assert "stopped" in err
