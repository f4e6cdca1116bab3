"""The process that calls reward functions: reads requests and answers in lines of JSON. It runs untrusted code.

    python -m zo.rewards.grader REQUESTS REPLIES RUN

The run reads its output only as JSON of limited length.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import struct
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from zo.rewards import confine
from zo.rewards.calls import Grader, Request, UnusableError, rate, sentence
from zo.rewards.named import grader

OF_THE_RUN = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""Signals that a terminal or a cluster sends to all processes of a job; only the run reacts to them."""

RUN_ENDED = signal.SIGIO  # Signal by which the kernel says that the run has ended
LENGTH = struct.Struct("!Q")  # Header of a request: its length in bytes

TOKEN = 16
"""Bytes of the token after the header. The answer repeats it, so that it cannot be confused with another."""


def main(requests: int, replies: int, run: int) -> NoReturn:
    """Starts the grader, and waits for its end.

    This process runs no reward function. It adopts what the grader leaves, and kills it when grader or `run` ends.
    Requests come from a file descriptor, first the settings, see `zo.rewards.pool.Setup`. Answers go to another.
    """
    for number in OF_THE_RUN:
        signal.signal(number, _ignore)
    signal.signal(RUN_ENDED, _end)
    confine.die_with_parent(run, RUN_ENDED)
    confine.adopt_orphans()
    token, setup = _read(requests) or sys.exit()
    sys.path[:] = setup["path"]
    namespaces = setup["sandbox"] and confine.enter()  # of processes from the next child on
    me, child = os.getpid(), os.fork()
    if child == 0:
        confine.die_with_parent(me)
        serve(requests, replies, setup, token, namespaces)
    os.close(requests)
    os.close(replies)
    ended = status = 0
    while ended != child:
        ended, status = os.waitpid(-1, 0)
    kill_descendants(me)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def serve(
    requests: int, replies: int, setup: Mapping[str, Any], token: str, namespaces: bool
) -> NoReturn:
    """Rates texts until there are no more requests; then ends the process.

    Requests are a function's index and a `Request`, pickled. `token` is of the first answer; `namespaces`: whether the
    process is in new ones.
    """
    signal.signal(RUN_ENDED, signal.SIG_DFL)
    os.register_at_fork(after_in_child=_heed_signals)
    confine.limit(setup["memory_gib"], namespaces)
    barriers = confine.confine(os.getcwd(), namespaces) if setup["sandbox"] else {}
    functions: list[Grader] = []
    own = os.getpid()
    try:
        for address in setup["functions"]:
            functions.append(grader(address, setup["columns"], setup["options"], setup["timeout"]))
    except BaseException as error:
        said = str(error) if isinstance(error, UnusableError) else sentence(error)
        _reply(replies, {"token": token, "unusable": said})
        os._exit(0)
    if "multiprocessing" in sys.modules and any(":" in of for of in setup["functions"]):
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # a process that stays, as do all that are started by now
    _reply(replies, {"token": token, "barriers": barriers})
    while (request := _read(requests)) is not None:
        token, (index, given) = request
        answer = rate(functions[index], Request(*given))
        if os.getpid() != own:  # a process that a text forked, and that returned from it
            os._exit(0)
        _reply(replies, {"token": token, **answer})
    os._exit(0)


def _reply(replies: int, answer: Mapping[str, Any]) -> None:
    line = json.dumps(answer).encode() + b"\n"
    while line:
        line = line[os.write(replies, line) :]


def _read(requests: int) -> tuple[str, Any] | None:
    """Returns token and content of the next request; None after the last one."""
    head = _exactly(requests, LENGTH.size)
    found = None if head is None else _exactly(requests, TOKEN + LENGTH.unpack(head)[0])
    return None if found is None else (found[:TOKEN].hex(), pickle.loads(found[TOKEN:]))


def _exactly(requests: int, length: int) -> bytes | None:
    found = bytearray()
    while len(found) < length:
        piece = os.read(requests, min(length - len(found), 1 << 20))
        if not piece:
            return None
        found += piece
    return bytes(found)


def _ignore(*_: object) -> None:
    """A handler, unlike `SIG_IGN`, is not inherited by a program that a reward function starts."""


def _heed_signals() -> None:
    for number in OF_THE_RUN:
        signal.signal(number, signal.SIG_DFL)


def _end(*_: object) -> NoReturn:
    kill_descendants(os.getpid())
    shutil.rmtree(os.getcwd(), ignore_errors=True)  # the scratch directory
    os._exit(1)


def descendants(pid: int) -> list[int]:
    """Returns the living descendants of a process; none where the kernel does not list them."""
    found = []
    with suppress(OSError):  # it has ended, or this is not Linux
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="utf-8") as file:
                found += [int(child) for child in file.read().split()]
    living = []
    for child in found:
        with suppress(OSError), open(f"/proc/{child}/stat", encoding="utf-8") as file:
            if file.read().rpartition(")")[2].split()[0] not in "ZX":
                living.append(child)
        living += descendants(child)
    return living


def kill_descendants(pid: int, keep: Collection[int] = ()) -> int:
    """Kills the descendants of a process, without those to keep; returns their number.

    All are stopped first, so that none starts another one meanwhile.
    """
    stopped: set[int] = set()
    while more := {*descendants(pid)}.difference(stopped, keep):
        _send(signal.SIGSTOP, more)
        stopped |= more
    _send(signal.SIGKILL, stopped)
    return len(stopped)


def _send(number: int, pids: Collection[int]) -> None:
    for pid in pids:
        with suppress(OSError):  # it has ended
            os.kill(pid, number)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
