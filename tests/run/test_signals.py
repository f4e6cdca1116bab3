"""Requests to stop: a signal is heeded where it is asked for, and whoever listened before is told, too."""

# ruff: noqa: PT012  where in the body a request is heeded is what these tests are about

import os
import signal

import pytest

from zo.run.signals import HEEDED, INTERRUPTED, Interrupted, requests


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", HEEDED)
def test_a_signal_is_heeded_only_where_it_is_asked_for(number):
    before = signal.getsignal(number)
    reached = []
    with pytest.raises(Interrupted) as stopped, requests() as asked:
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
