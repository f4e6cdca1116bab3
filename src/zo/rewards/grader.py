"""The process that calls reward functions: reads requests and answers in lines of JSON. It runs untrusted code.

The supervisor reads its output only as JSON of limited length.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import struct
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from zo.rewards import confine
from zo.rewards.calls import Grader, Request, UnusableError, rate, sentence
from zo.rewards.named import grader

OF_THE_RUN = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""Signals that a terminal or a cluster sends to all processes of a job; only the run reacts to them."""

LENGTH = struct.Struct("!Q")
"""Header of a request: its length in bytes."""

TOKEN = 16
"""Bytes of the token after the header. The answer repeats it, so that it cannot be confused with another."""


def serve(
    requests: int, replies: int, setup: Mapping[str, Any], scratch: str, namespaces: bool
) -> NoReturn:
    """Rates texts until there are no more requests; then ends the process.

    Args:
        requests: File descriptor that requests come from: a function's index and a `Request`, pickled.
        replies: File descriptor that the answers go to.
        setup: See `zo.rewards.pool.Setup`.
        scratch: Working directory, home, and the only place to write to.
        namespaces: Whether the process is in new namespaces.
    """
    os.chdir(scratch)
    for number in OF_THE_RUN:
        signal.signal(number, _ignore)
    os.register_at_fork(after_in_child=_heed_signals)
    confine.limit(setup["memory_gib"], namespaces)
    barriers = confine.confine(scratch, namespaces) if setup["sandbox"] else {}
    functions: list[Grader] = []
    own = os.getpid()
    try:
        for address in setup["functions"]:
            functions.append(grader(address, setup["columns"], setup["options"], setup["timeout"]))
    except UnusableError as error:
        _reply(replies, {"unusable": str(error)})
        os._exit(0)
    except BaseException as error:
        _reply(replies, {"unusable": sentence(error)})
        os._exit(0)
    if "multiprocessing" in sys.modules and any(":" in of for of in setup["functions"]):
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # a process that stays, as do all that are started by now
    _reply(replies, {"barriers": barriers})
    while (request := _read(requests)) is not None:
        token, (index, given) = request[:TOKEN].hex(), pickle.loads(request[TOKEN:])
        answer = rate(functions[index], Request(*given))
        if os.getpid() != own:  # a process that a text forked, and that returned from it
            os._exit(0)
        _reply(replies, {"token": token, **answer})
    os._exit(0)


def _reply(replies: int, answer: Mapping[str, Any]) -> None:
    line = json.dumps({"token": "", **answer}).encode() + b"\n"
    while line:
        line = line[os.write(replies, line) :]


def _read(requests: int) -> bytes | None:
    """Returns the next request; None after the last one."""
    head = _exactly(requests, LENGTH.size)
    return None if head is None else _exactly(requests, TOKEN + LENGTH.unpack(head)[0])


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
