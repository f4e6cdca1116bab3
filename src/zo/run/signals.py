"""Requests to stop: a signal sets a flag, and the run stops where everything is saved.

SIGTERM is preemption, `scancel` or `kill`; SIGUSR2 a cluster's warning that time is nearly up; SIGINT is Ctrl-C, of
which a second one does not wait. Imports nothing slow: a command calls `end_at_once` before it imports anything else.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from zo.extras import HEEDED

INTERRUPTED = 143  # Exit status of a run that was asked to stop: 128 + SIGTERM

CTRL_C = 130
"""Exit status of a run that Ctrl-C stopped; its process ends by SIGINT itself, so that a shell's loop stops, too."""


def end_at_once() -> None:
    """Makes Ctrl-C and SIGTERM end the process with one line, wherever it is, while no run listens to them.

    Also prepares `leave`.
    """
    atexit.register(_leave)  # before all others, so that it is called after them

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, b"\nstopped; the same command goes on from what is saved\n")
        _exit(128 + number)  # no traceback of whatever is being imported

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)


def leave(main: Callable[[], int]) -> NoReturn:
    """Calls `main` and ends the process, but does not take the interpreter apart: after torch that takes seconds.

    Exit functions are called, but for those that were registered before `end_at_once`.
    """
    try:
        status = main()
    except Interrupted as stopped:
        status = stopped.status
    _left_with.append(status)
    sys.exit(status)


def _exit(status: int) -> NoReturn:
    """Ends the process at once, after Ctrl-C by its signal."""
    if status == CTRL_C:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)


_left_with: list[int] = []


def _leave() -> None:
    """Ends the process where `leave` was called."""
    if _left_with:
        with suppress(OSError):  # where it fails, Python's own end says so
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:  # as after >&-
                    stream.flush()
            _exit(_left_with[-1])


class Interrupted(SystemExit):
    """The run was asked to stop and everything is saved. Passes through what catches exceptions."""

    def __init__(self, number: int):
        self.status = CTRL_C if number == signal.SIGINT else INTERRUPTED
        super().__init__(self.status)
        self.name = signal.Signals(number).name


class Lost(Interrupted):
    """Another process of the run, or a file that it reads, is gone; what was made is saved."""

    def __init__(self, name: str = "lost process") -> None:
        super().__init__(signal.SIGTERM)
        self.name = name


class Requests:
    """Which signals came."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._loading = False

    def heed(self) -> None:
        """Raises Interrupted if the run was asked to stop. To be called where stopping loses nothing."""
        if self.received:
            raise Interrupted(self.received[0])

    @contextmanager
    def loading(self) -> Iterator[None]:
        """While the body runs, which saves nothing, a signal stops the run at once."""
        self._loading = True
        try:
            self.heed()
            yield
            self.heed()
        finally:
            self._loading = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if number == signal.SIGINT and number in self.received:
            raise KeyboardInterrupt
        self.received.append(number)
        if self._loading:
            raise Interrupted(number)
        if number == signal.SIGINT:
            print("stopping after this step; Ctrl-C again does not wait", file=sys.stderr)


@contextmanager
def requests() -> Iterator[Requests]:
    """Turns signals into requests while the body runs; then puts back the handlers that were there.

    A handler for SIGUSR2 that was there before, as Submitit's, which puts the job back into the queue, is called once
    the run has stopped because of it. Outside the main thread, where Python allows no handlers, no request ever comes.
    """
    asked = Requests()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before: dict[int, Any] = {number: signal.signal(number, asked) for number in HEEDED}
    try:
        yield asked
    except Interrupted:
        queue_again = before[signal.SIGUSR2]
        if signal.SIGUSR2 in asked.received and callable(queue_again):
            queue_again(signal.SIGUSR2, None)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
