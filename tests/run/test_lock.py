"""Locks: one live process per directory, whoever died in it."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from zo.run import lock
from zo.run.lock import LockedError, held, holder

HOLD = """
import sys, time
from pathlib import Path
from zo.run.lock import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def another_process(directory, **environment):
    """A process that holds the directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    assert process.stdout.readline() == b"held\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.process
def test_a_live_process_keeps_others_out_and_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE_S", 0.1)
    with another_process(tmp_path, SLURM_JOB_ID="17") as process:
        found = holder(tmp_path)
        assert (found.pid, found.host, found.job) == (process.pid, socket.gethostname(), "17")
        with pytest.raises(LockedError) as refused, held(tmp_path):
            pass
        assert refused.value.holder == found
        expected = f"{tmp_path} is being written by process {process.pid} on {found.host}, SLURM job 17, since "
        assert str(refused.value).startswith(expected)


@pytest.mark.process
def test_a_killed_process_is_taken_over_with_a_message(tmp_path, capsys):
    with another_process(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert holder(tmp_path) is None, "it is dead"
        with held(tmp_path):
            assert holder(tmp_path).pid == os.getpid()
    said = capsys.readouterr().err
    assert f"{tmp_path}: taken over from process {process.pid} on " in said
    assert said.strip().endswith(", which is gone")


def test_a_lock_that_was_given_back_is_taken_without_a_word(tmp_path, capsys):
    for _ in range(2):
        with held(tmp_path):
            pass
    assert holder(tmp_path) is None
    assert capsys.readouterr().err == ""


def test_a_lock_is_given_back_when_its_body_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), held(tmp_path):
        raise ZeroDivisionError
    assert holder(tmp_path) is None


def test_a_file_system_without_locks_is_said_and_used(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(lock.errno.ENOLCK, "no locks")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with held(tmp_path):
        pass
    assert "this file system has no locks" in capsys.readouterr().err
