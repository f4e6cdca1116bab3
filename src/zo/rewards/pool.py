"""The run's side of graders, the processes that call reward functions: sends texts, gets data, ends what hangs."""

from __future__ import annotations

import json
import math
import os
import pickle
import queue
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from zo.rewards.calls import FAILED, Request
from zo.rewards.grader import LENGTH, TOKEN, descendants, kill_descendants

SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""Endings of environment variables that a sandboxed grader does not get."""

LOADING_S = 120.0  # Seconds that the import of the reward functions' modules may take
CLOSING_S = 0.5  # Seconds in which a grader that closed its pipe ends
REPLY, REPLY_OF_A_TEXT = 1 << 20, 1 << 16  # Most bytes of an answer, and of each of its texts
PRINTED = 2_000  # Bytes of a grader's output that are kept
LONGEST_SENTENCE, LONGEST_TRACEBACK = 1_000, 20_000
SCALARS = (str, int, float, type(None))
FORGED = "its answer does not have a grader's format"
PIECE = 1 << 16


@dataclass(frozen=True)
class Setup:
    """Settings of graders."""

    # Addresses, `module:function` or `file.py:function`, or a grader's name
    functions: Sequence[str]
    columns: Sequence[str] = ()  # Columns of the data
    # Of `reasoning_gym`: the task's `name` and `options`
    options: dict[str, Any] = field(default_factory=dict)
    timeout: float = 10.0  # Seconds that a call may take
    memory_gib: float = 4.0  # Data memory of each process, GiB
    sandbox: bool = True  # Whether graders are sandboxed, see `zo.rewards.confine`
    # Where modules are imported from
    path: Sequence[str] = field(default_factory=lambda: [p or os.getcwd() for p in sys.path])


@dataclass(frozen=True)
class Task:
    """A call of one function."""

    function: int  # Its index
    request: Request | None  # The texts; None: only start a grader
    limit_s: float  # Seconds that the call may take


class Pool:
    """Some graders, each served by a thread of the run; they end with this object or with this process."""

    def __init__(self, setup: Setup, size: int):
        self._graders = [_Grader(setup) for _ in range(size)]
        self._idle: queue.SimpleQueue[_Grader] = queue.SimpleQueue()
        for grader in self._graders:
            self._idle.put(grader)
        # Threads stay as long as the pool does: a grader ends with the thread that started it.
        self._threads = ThreadPoolExecutor(size, "zo-grading")
        weakref.finalize(self, _close, self._graders, self._threads)

    def __len__(self) -> int:
        return len(self._graders)

    def start(self) -> list[dict[str, Any]]:
        """Starts all graders; returns the first answer of each."""
        return [*self._threads.map(lambda grader: grader.answer(Task(0, None, 0.0)), self._graders)]

    def call(self, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        """Returns the answer to each task, see `zo.rewards.calls.rate`.

        The answer to a failed call has `failed` (`hang`, `exit`, `raise`, `memory`, `length`, or `unusable` if there is
        no such function) and the reason in `said`. All have `seconds`, and may have `printed` and `left`, a number of
        processes.
        """
        try:
            return [*self._threads.map(self._answer, tasks)]
        except BaseException:  # Ctrl-C: nobody waits for the answers
            for grader in self._graders:
                grader.kill()
            raise

    def _answer(self, task: Task) -> dict[str, Any]:
        grader = self._idle.get()
        try:
            return grader.answer(task)
        finally:
            self._idle.put(grader)


class _Ended(Exception):
    """The grader has ended or must be ended; has the kind of failure and the reason."""


class _Grader:
    """A grader's process. The first call starts it, and the next one after a failure starts another."""

    def __init__(self, setup: Setup):
        self._setup = setup
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = self._replies = self._output = -1
        self._scratch = ""
        self._kept: frozenset[int] = frozenset()
        self._barriers: dict[str, bool] = {}
        self._buffer, self._printed = bytearray(), bytearray()

    def answer(self, task: Task) -> dict[str, Any]:
        """Returns the answer to a task, or how the grader failed."""
        self._printed.clear()
        begun = time.monotonic()
        try:
            process = self._process or self._start()
            begun = time.monotonic()
            answer: dict[str, Any] = {"barriers": self._barriers}
            if task.request is not None:
                count = len(task.request.texts)
                request = pickle.dumps((task.function, tuple(task.request)))
                answer = _plain(self._exchange(request, count, task.limit_s), count)
            answer["left"] = kill_descendants(process.pid, self._kept)
        except _Ended as ended:
            kind, said = ended.args
            answer = {"failed": kind, "said": said}
            self.end()
        except BaseException:
            self.end()
            raise
        if self._printed:
            answer["printed"] = self._printed.decode(errors="replace")
        return answer | {"seconds": time.monotonic() - begun}

    def kill(self) -> None:
        """Kills the grader and its descendants; the thread that waits for its answer sees the end."""
        if (process := self._process) is not None:
            process.send_signal(signal.SIGSTOP)  # it starts no other, and adopts theirs
            kill_descendants(process.pid)
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kills the grader and its descendants, and removes its files."""
        self.kill()
        if self._process is not None:
            self._process.wait()
            for end in (self._requests, self._replies, self._output):
                os.close(end)
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        """Starts a grader, and waits until it has loaded its functions."""
        self._scratch = tempfile.mkdtemp(prefix="zo-grader-")
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        self._output, output = os.pipe()
        given = map(str, (requests, replies, os.getpid()))
        try:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "zo.rewards.grader", *given],
                pass_fds=(requests, replies),
                start_new_session=True,  # a terminal's Ctrl-C does not reach it
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(self._setup, self._scratch),
                cwd=self._scratch,
            )
        finally:
            for end in (requests, replies, output):
                os.close(end)
        for end in (self._requests, self._replies, self._output):
            os.set_blocking(end, False)
        try:
            answer = self._exchange(pickle.dumps(asdict(self._setup)), 0, LOADING_S)
        except _Ended as ended:
            raise _Ended("unusable", f"its module {ended.args[1]} while it was imported") from None
        if "unusable" in answer:
            raise _Ended("unusable", str(answer["unusable"]))
        self._barriers = {str(name): bool(of) for name, of in dict(answer["barriers"]).items()}
        self._kept = frozenset(descendants(process.pid))
        return process

    def _exchange(self, request: bytes, texts: int, limit_s: float) -> dict[str, Any]:
        """Writes a request about some texts; returns the answer with its token. Raises _Ended without one in time."""
        until, most = time.monotonic() + limit_s, REPLY + texts * REPLY_OF_A_TEXT
        token = secrets.token_bytes(TOKEN)
        left = memoryview(LENGTH.pack(len(request)) + token + request)
        self._buffer.clear()
        with selectors.DefaultSelector() as selector:
            for end in (self._replies, self._output):
                selector.register(end, selectors.EVENT_READ)
            selector.register(self._requests, selectors.EVENT_WRITE)
            while (reply := self._reply(token.hex())) is None:
                rest = until - time.monotonic()
                if rest <= 0:
                    raise _Ended("hang", f"took longer than {limit_s:g} s")
                if len(self._buffer) > most:
                    raise _Ended("raise", "its answer is too long")
                for key, _ in selector.select(rest):
                    if key.fd == self._requests:
                        with suppress(OSError):  # a grader that has ended is seen where it is read
                            left = left[os.write(self._requests, left[:PIECE]) :]
                        if not left:
                            selector.unregister(self._requests)
                    elif not self._read(key.fd):
                        selector.unregister(key.fd)
                        if key.fd == self._replies:
                            raise _Ended("exit", self._status())
            self._drain()
        return reply

    def _read(self, end: int) -> bool:
        """Reads the grader's output; returns whether there may be more."""
        try:
            piece = os.read(end, PIECE)
        except BlockingIOError:
            return True
        if end == self._replies:
            self._buffer += piece
        elif len(self._printed) < PRINTED:
            self._printed += piece[: PRINTED - len(self._printed)]
        return bool(piece)

    def _drain(self) -> None:
        """Reads what the grader printed before its answer."""
        for _ in range(16):
            before = len(self._printed)
            if not self._read(self._output) or len(self._printed) == before:
                return

    def _reply(self, token: str) -> dict[str, Any] | None:
        """Returns the answer with this token, if it has arrived; ignores other lines, which a text may forge."""
        while b"\n" in self._buffer:
            line, _, rest = bytes(self._buffer).partition(b"\n")
            self._buffer[:] = rest
            with suppress(ValueError, RecursionError):
                reply = json.loads(line)
                if isinstance(reply, dict) and reply.get("token") == token:
                    return reply
        return None

    def _status(self) -> str:
        """Returns how the grader ended, as text."""
        assert self._process is not None
        try:
            status = self._process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            return "closed the pipe that its answers go to"
        number = -status if status < 0 else status - 128
        if number in {*signal.Signals}:
            return f"ended the process by {signal.Signals(number).name}"
        return f"ended the process with status {status}"


def _environment(setup: Setup, scratch: str) -> dict[str, str]:
    """Returns a grader's environment variables; caches of downloaded models stay readable."""
    env = {"XDG_CACHE_HOME": os.path.expanduser("~/.cache"), **os.environ}
    if setup.sandbox:
        env = {name: of for name, of in env.items() if not name.upper().endswith(SECRET)}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *setup.path])
    return env | {"HOME": scratch, "TMPDIR": scratch}


def _plain(reply: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Returns a grader's answer about some texts with only the expected keys and types, see `zo.rewards.calls.rate`.

    Raises:
        _Ended: If it does not have a number or a reason for each text, and for no others.
    """
    try:
        if "failed" in reply:
            kind = str(reply["failed"])
            return {
                "failed": kind if kind in FAILED else FAILED[0],
                "said": str(reply["said"])[:LONGEST_SENTENCE],
                "traceback": str(reply.get("traceback", ""))[:LONGEST_TRACEBACK],
            }
        values = [None if value is None else float(value) for value in reply["values"]]
        bad = {int(i): [str(kind), str(said)] for i, (kind, said) in reply["bad"].items()}
        extra = {
            str(name): [of if isinstance(of, SCALARS) else str(of) for of in column]
            for name, column in reply["extra"].items()
        }
        metrics = {str(name): list(map(float, of)) for name, of in reply["metrics"].items()}
        dropped = int(reply.get("dropped", 0))
        numbers = [v for v in [*values, *chain(*metrics.values())] if v is not None]
        columns: list[list[Any]] = [values, *extra.values()]
        whole = all(len(of) == count for of in columns)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise _Ended("raise", FORGED) from None
    if not (whole and all(0 <= i < count for i in bad) and all(map(math.isfinite, numbers))):
        raise _Ended("raise", FORGED)
    return {"values": values, "bad": bad, "extra": extra, "metrics": metrics, "dropped": dropped}


def _close(graders: Sequence[_Grader], threads: ThreadPoolExecutor) -> None:
    for grader in graders:
        grader.kill()
    threads.shutdown()
    for grader in graders:
        grader.end()
