"""Finds and kills the processes that a grader started."""

import os
import signal
from collections.abc import Collection
from contextlib import suppress


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
