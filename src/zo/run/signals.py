"""Requests to stop: a signal sets a flag, and the run stops where everything is saved.

`DeferredSignals` lets a step of somebody else's training loop end before the signal reaches the loop's own handler.

SIGTERM is preemption, `scancel` or `kill`; SIGUSR2 a cluster's warning that time is nearly up; SIGINT is Ctrl-C, of
which a second one does not wait. Imports nothing slow: a command calls `end_at_once` before it imports anything else.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 143
"""Exit status of a run that was asked to stop: 128 + SIGTERM."""

HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)

OTHERS = (signal.SIGUSR1, signal.SIGHUP, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)
TIMERS = OTHERS[2:]
"""Belong to the code that they interrupt; all others ask the process to stop."""


def end_at_once() -> None:
    """Makes Ctrl-C and SIGTERM end the process with one line, wherever it is, while no run listens to them.

    Also prepares `leave`.
    """
    atexit.register(_leave)  # before all others, so that it is called after them

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, b"\nstopped; the same command goes on from what is saved\n")
        os._exit(128 + number)  # no traceback of whatever is being imported

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)


def leave(status: int) -> NoReturn:
    """Ends the process as `sys.exit` does, but does not take the interpreter apart: after torch that takes seconds.

    Exit functions are called, but for those that were registered before `end_at_once`.
    """
    _left_with.append(status)
    sys.exit(status)


_left_with: list[int] = []


def _leave() -> None:
    """Ends the process where `leave` was called."""
    if _left_with:
        with suppress(OSError):  # where it fails, Python's own end says so
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:  # as after >&-
                    stream.flush()
            os._exit(_left_with[-1])


class Interrupted(SystemExit):
    """The run was asked to stop and everything is saved. Passes through what catches exceptions."""

    def __init__(self, number: int):
        super().__init__(INTERRUPTED)
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


class DeferredSignals:
    """Keeps the handlers of signals from interrupting a body; they are called when it ends.

    Outside the main thread, where Python calls no handlers, this does nothing.

    Args:
        finish: Whether a request to stop waits for the end of the body also in `delivered`. A second one does not.
    """

    def __init__(self, finish: bool):
        self._finish = finish
        self._state = "closed"  # or `held`, or in `delivered` `open`
        self._received: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "DeferredSignals":
        """Begins to keep signals."""
        if threading.current_thread() is threading.main_thread():
            self._state = "held"
            found = {number: signal.getsignal(number) for number in (*HEEDED, *OTHERS)}
            self._before = {number: of for number, of in found.items() if callable(of)}
            try:
                for number in self._before:
                    signal.signal(number, self)
            except BaseException:  # of a handler that is not replaced yet
                self._put_back()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        """Puts the handlers back and calls those of the signals that came."""
        try:
            self._put_back()
        finally:
            self._state = "closed"
            for number in self._received:
                self._before[number](number, sys._getframe())

    @contextmanager
    def delivered(self) -> Iterator[None]:
        """While this body runs, which may last long, signals interrupt it as `finish` allows."""
        if self._state == "closed":
            yield
            return
        try:
            self._state = "open"
            yield
        finally:
            self._state = "held"

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The handler; one that stays in place after the body passes signals on."""
        if self._state == "closed":
            self._before[number](number, frame)
            return
        waits = self._finish and number not in TIMERS and number not in self._received
        self._received.append(number)
        if self._state == "held" or waits:
            return
        self._state = "held"  # while a handler raises through the body, no other one does
        received, self._received = self._received, []
        for one in received:
            self._before[one](one, frame)
        self._state = "open"

    def _put_back(self) -> None:
        """Puts all handlers back, also where one of them raises meanwhile."""
        left, raised = [*self._before], None
        while left:
            try:
                handler: Any = signal.getsignal(left[-1])
                if handler is self:
                    signal.signal(left[-1], self._before[left[-1]])
                left.pop()
            except BaseException as error:
                raised = error
        if raised is not None:
            raise raised
