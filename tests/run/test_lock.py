"""Locks: one live process per directory, whoever died in it."""

import os
import signal
import socket
import subprocess
import sys

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


@pytest.mark.process
def test_a_live_process_keeps_others_out_and_a_killed_one_is_taken_over(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(lock, "PATIENCE_S", 0.1)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    environment = {**os.environ, "SLURM_JOB_ID": "17"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout.readline() == b"held\n"
            found = holder(tmp_path)
            assert (found.pid, found.host, found.job) == (process.pid, socket.gethostname(), "17")
            with pytest.raises(LockedError) as refused, held(tmp_path):
                pass
        finally:
            process.send_signal(signal.SIGKILL)
    assert refused.value.holder == found
    by = f"process {process.pid} on {found.host}, SLURM job 17, "
    assert str(refused.value).startswith(f"{tmp_path} is being written by {by}since ")
    assert holder(tmp_path) is None, "it is dead"
    with held(tmp_path):
        assert holder(tmp_path).pid == os.getpid()
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"{tmp_path}: taken over from {by}")
    assert said.endswith(", which is gone")


def test_a_lock_is_given_back_also_when_its_body_fails_and_taken_without_a_word(tmp_path, capsys):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), held(tmp_path):
            raise ZeroDivisionError
    assert holder(tmp_path) is None
    assert capsys.readouterr().err == ""


def test_a_file_system_without_locks_is_said_and_used(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(lock.errno.ENOLCK, "no locks")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with held(tmp_path):
        pass
    assert "this file system has no locks" in capsys.readouterr().err
