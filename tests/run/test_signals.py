"""Requests to stop: heeded where they are asked for, told to whoever listened before, one line of a command."""

# ruff: noqa: PT012  where in the body a request is heeded is what these tests are about

import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.runs import stopped_after
from tests.support.waiting import wait_for
from zo.run.assembly import Session
from zo.run.command import make
from zo.run.signals import HEEDED, Interrupted, requests
from zo.run.store import checkpoint
from zo.run.store.directory import directory_of


@pytest.mark.parametrize("number", HEEDED)
def test_a_signal_is_heeded_only_where_it_is_asked_for(number):
    before, reached = signal.getsignal(number), False
    with pytest.raises(Interrupted) as stopped, requests() as asked:
        asked.heed()
        signal.raise_signal(number)
        reached = True
        asked.heed()
    assert reached
    status = 130 if number == signal.SIGINT else 143
    assert (stopped.value.code, stopped.value.name) == (status, signal.Signals(number).name)
    assert signal.getsignal(number) == before


def test_a_second_ctrl_c_does_not_wait(capsys):
    with pytest.raises(KeyboardInterrupt), requests():
        signal.raise_signal(signal.SIGINT)
        assert "Ctrl-C again does not wait" in capsys.readouterr().err
        signal.raise_signal(signal.SIGINT)


def test_a_handler_that_was_there_as_submitits_is_called_once_the_run_has_stopped():
    calls, number = [], signal.SIGUSR2
    before = signal.signal(number, lambda number, frame: calls.append(number))
    try:
        with pytest.raises(Interrupted), requests() as asked:
            signal.raise_signal(number)
            assert calls == []
            asked.heed()
        assert calls == [number]
        with requests():
            signal.raise_signal(number)
        assert calls == [number], "a run that ends before it heeds is simply over"
        signal.raise_signal(number)
        assert calls == [number] * 2, "and is there again"
    finally:
        signal.signal(number, before)


def test_outside_the_main_thread_there_are_no_requests():
    def listen() -> None:
        with requests() as asked:
            asked.heed()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(listen).result()


def test_a_run_that_is_loading_stops_at_once(make_run, monkeypatch, capsys):
    def load(cfg, scratch, shared):
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it went on loading")

    monkeypatch.setattr(Session, "open", load)
    with pytest.raises(Interrupted):
        make(make_run())
    assert capsys.readouterr().err == "stopped before step 1; the same command starts again\n"


def test_a_step_that_cannot_be_replayed_is_saved_before_the_run_stops(make_run):
    cfg = make_run("optimizer=adam")
    with stopped_after(3):
        make(cfg)
    assert checkpoint.steps(directory_of(cfg))[-1] == 3  # beside that of the best step


def handles_sigterm(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (signal.SIGTERM - 1) & 1


@pytest.mark.process
@pytest.mark.parametrize(
    ("seconds", "number", "status"), [(0, signal.SIGINT, -2), (3, signal.SIGTERM, 143)]
)
def test_a_signal_while_the_command_starts_is_one_line(tmp_path, seconds, number, status):
    command = subprocess.Popen(
        [sys.executable, "train.py", "-m", "seed=0,1", f"out={tmp_path}", "tracking.mode=disabled"],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: handles_sigterm(command.pid), "the first line of the command")
    time.sleep(seconds)
    command.send_signal(number)
    _, err = command.communicate(timeout=300)
    assert command.returncode == status
    assert "Traceback" not in err
    assert "stopped" in err
