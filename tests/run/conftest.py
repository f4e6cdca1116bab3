"""What interrupts a run in the middle of its steps."""

import os
import signal
from contextlib import contextmanager

import pytest

from zo.run import loop


@pytest.fixture
def stop_after(monkeypatch):
    """Returns a context manager: runs within it get a signal after that many steps of all of them together."""

    @contextmanager
    def stopping(steps, number=signal.SIGTERM):
        made, count = loop._step, 0

        def step(session, *rest):
            nonlocal count
            row, count = made(session, *rest), count + 1
            if count == steps:
                os.kill(os.getpid(), number)
            return row

        with monkeypatch.context() as patched:
            patched.setattr(loop, "_step", step)
            yield

    return stopping
