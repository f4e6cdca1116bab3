"""The process between a run and a grader: starts the grader, sends it texts, and ends it at a timeout.

A run starts one supervisor for each grader. The supervisor runs no code of a reward function, so it can always end the
grader. It ends with the run, when the run's socket closes. It forks the grader, which costs milliseconds, and imports
the packages of named graders before. Only the supervisor reads a grader's output, not the run.
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from zo.rewards import calls, confine, grader
from zo.rewards.named import PACKAGES

LOADING_S = 120.0
"""Seconds that the import of the reward functions' modules may take."""

LONGEST_REPLY = 1 << 26
PRINTED = 2_000
"""Bytes of a grader's output that are kept."""

LONGEST_SENTENCE, LONGEST_TRACEBACK = 1_000, 20_000
SCALARS = (str, int, float, type(None))
FORGED = "its answer does not have a grader's format"

PIECE = 1 << 16
CLOSING_S, ENDING_S = 0.5, 5.0


class _Ended(Exception):
    """The grader has ended or must be ended; has the kind of failure and the reason."""


class Supervisor:
    """Answers a run's requests with a grader.

    Args:
        run: Connection to the run.
        setup: See `zo.rewards.pool.Setup`.
    """

    def __init__(self, run: Connection, setup: Mapping[str, Any]):
        self._run, self._setup = run, setup
        self._child: int | None = None
        self._requests = self._replies = self._output = -1
        self._scratch = ""
        self._kept: frozenset[int] = frozenset()
        self._barriers: dict[str, bool] = {}
        self._buffer, self._printed = bytearray(), bytearray()

    def serve(self) -> None:
        """Answers requests until the run ends."""
        try:
            while True:
                limit_s, request = self._run.recv()
                self._run.send_bytes(json.dumps(self._answer(limit_s, request)).encode())
        except (EOFError, OSError):  # the run has ended
            pass
        finally:
            self._end()

    def _answer(self, limit_s: float, request: bytes) -> dict[str, Any]:
        """Returns the grader's answer to a request, or how the grader failed; an empty request only starts it."""
        self._printed.clear()
        begun = time.monotonic()
        try:
            if self._child is None:
                self._start()
            begun = time.monotonic()
            answer: dict[str, Any] = {"barriers": self._barriers}
            if request:
                token = secrets.token_bytes(grader.TOKEN)
                head = grader.LENGTH.pack(len(request)) + token
                answer = _plain(self._exchange(head + request, token.hex(), limit_s))
        except _Ended as ended:
            self._end()
            kind, said = ended.args
            answer = {"failed": kind, "said": said}
        else:
            answer["left"] = self._end_left_behind()
        if self._printed:
            answer["printed"] = self._printed.decode(errors="replace")
        answer["seconds"] = time.monotonic() - begun
        return answer

    def _start(self) -> None:
        """Starts a grader and waits until it has loaded its functions."""
        for address in self._setup["functions"]:
            if address in PACKAGES:
                with suppress(ImportError):  # the grader says so
                    importlib.import_module(PACKAGES[address])
        self._scratch = tempfile.mkdtemp(prefix="zo-grader-")
        requests, replies, output = os.pipe(), os.pipe(), os.pipe()
        me = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            self._become_grader(me, requests[0], replies[1], output[1])
        for end in (requests[0], replies[1], output[1]):
            os.close(end)
        self._requests, self._replies, self._output = requests[1], replies[0], output[0]
        for end in (self._requests, self._replies, self._output):
            os.set_blocking(end, False)
        try:
            answer = self._exchange(b"", "", LOADING_S)
        except _Ended as ended:
            raise _Ended("unusable", f"its module {ended.args[1]} while it was imported") from None
        if "unusable" in answer:
            raise _Ended("unusable", str(answer["unusable"]))
        self._barriers = {str(name): bool(of) for name, of in dict(answer["barriers"]).items()}
        self._kept = frozenset(_descendants(me))

    def _become_grader(self, parent: int, requests: int, replies: int, output: int) -> None:
        """Turns this new process into the grader, or into its parent outside of its namespaces."""
        try:
            os.setsid()
            confine.die_with_parent(parent)
            namespaces = self._setup["sandbox"] and confine.enter()
            if namespaces:  # of processes: from the next child on
                outer = os.getpid()
                inner = os.fork()
                if inner:
                    for end in (requests, replies, output):
                        os.close(end)
                    status = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
                    os._exit(status if status >= 0 else 128 - status)
                confine.die_with_parent(outer)
            keep = {requests, replies}
            nothing = os.open(os.devnull, os.O_RDONLY)
            for place, source in ((0, nothing), (1, output), (2, output)):
                os.dup2(source, place)
            for end in range(3, 256):
                if end not in keep:
                    with suppress(OSError):
                        os.close(end)
            os.environ.update(_environment(self._scratch))
            grader.serve(requests, replies, self._setup, self._scratch, namespaces)
        finally:
            os._exit(1)

    def _exchange(self, request: bytes, token: str, limit_s: float) -> dict[str, Any]:
        """Writes a request and returns the answer with its token.

        Raises:
            _Ended: If there is no answer in time.
            EOFError: If the run has ended.
        """
        until = time.monotonic() + limit_s
        left = memoryview(request)
        self._buffer.clear()
        with selectors.DefaultSelector() as selector:
            for end in (self._run.fileno(), self._replies, self._output):
                selector.register(end, selectors.EVENT_READ)
            if left:
                selector.register(self._requests, selectors.EVENT_WRITE)
            while (reply := self._reply(token)) is None:
                rest = until - time.monotonic()
                if rest <= 0:
                    raise _Ended("hang", f"took longer than {limit_s:g} s")
                for key, _ in selector.select(rest):
                    if key.fd == self._run.fileno():
                        raise EOFError  # the run sends nothing while it waits
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
            if len(self._buffer) > LONGEST_REPLY:
                raise _Ended("raise", "its answer is too long")
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
        assert self._child is not None
        ended, until = None, time.monotonic() + CLOSING_S
        while ended is None and time.monotonic() < until:
            ended = os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            time.sleep(0.001)
        if ended is None:
            return "closed the pipe that its answers go to"
        status = ended.si_status
        number = status if ended.si_code != os.CLD_EXITED else status - 128
        if number in {*signal.Signals}:
            return f"ended the process by {signal.Signals(number).name}"
        return f"ended the process with status {status}"

    def _end_left_behind(self) -> int:
        """Kills the processes that a call left behind, not those of the modules' import; returns their number."""
        every = _descendants(os.getpid())
        left = [pid for pid in every if pid not in self._kept and not _has_ended(pid)]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(left)

    def _end(self) -> None:
        """Kills the grader and its descendants."""
        if self._child is not None:
            with suppress(OSError):
                os.killpg(self._child, signal.SIGKILL)
            until = time.monotonic() + ENDING_S
            while time.monotonic() < until:
                for pid in _descendants(os.getpid()):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                try:
                    while os.waitpid(-1, os.WNOHANG)[0]:
                        pass
                except ChildProcessError:
                    break
                time.sleep(0.002)
            for end in (self._requests, self._replies, self._output):
                os.close(end)
        self._child = None
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = ""


def _plain(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a grader's answer with only the expected keys and types, see `zo.rewards.calls.rate`."""
    try:
        if "failed" in reply:
            kind = str(reply["failed"])
            return {
                "failed": kind if kind in calls.FAILED else calls.FAILED[0],
                "said": str(reply["said"])[:LONGEST_SENTENCE],
                "traceback": str(reply.get("traceback", ""))[:LONGEST_TRACEBACK],
            }
        return {
            "values": [None if value is None else float(value) for value in reply["values"]],
            "bad": {int(i): [str(kind), str(said)] for i, (kind, said) in reply["bad"].items()},
            "extra": {
                str(name): [of if isinstance(of, SCALARS) else str(of) for of in values]
                for name, values in reply["extra"].items()
            },
            "metrics": {str(name): list(map(float, of)) for name, of in reply["metrics"].items()},
        }
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise _Ended("raise", FORGED) from None


def _environment(scratch: str) -> dict[str, str]:
    """Returns environment variables of the scratch directory; caches of downloaded models stay readable."""
    home = os.path.expanduser("~")
    cache = os.environ.get("XDG_CACHE_HOME", os.path.join(home, ".cache"))
    return {"HOME": scratch, "TMPDIR": scratch, "XDG_CACHE_HOME": cache}


def _descendants(pid: int) -> list[int]:
    """Returns the descendants of a process, zombies included."""
    found = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        for thread in threads:
            with open(f"/proc/{pid}/task/{thread}/children", encoding="utf-8") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:  # it has ended, or the kernel does not list them
        return found
    return found + [below for child in found for below in _descendants(child)]


def _has_ended(pid: int) -> bool:
    """Returns whether a process is a zombie or gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def main() -> None:
    """Serves the run whose socket has the file descriptor on the command line."""
    for number in grader.OF_THE_RUN:
        signal.signal(number, signal.SIG_IGN)
    confine.adopt_orphans()
    run = Connection(int(sys.argv[1]))
    setup = run.recv()
    sys.path[:] = setup["path"]
    Supervisor(run, setup).serve()


if __name__ == "__main__":
    main()
