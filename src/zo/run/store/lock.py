"""One live process per run directory: a lock that the operating system gives back when its owner dies.

The lock is filelock's, on the file `lock`. The file holder.json says who holds it, or died with it.
"""

import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from zo.run.store import atomic

NAME, HOLDER = "lock", "holder.json"
PATIENCE_S = 1.0
"""Seconds that `held` tries for: `holder` takes the lock for an instant to see whether it is free."""

UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class Holder:
    """The process that holds a run."""

    host: str
    pid: int
    job: str | None  # of SLURM
    since: float  # seconds since the epoch

    def __str__(self) -> str:
        job = f", SLURM job {self.job}" if self.job else ""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host}{job}, since {when}"


class LockedError(RuntimeError):
    """Another live process holds the run's directory."""

    def __init__(self, directory: Path, by: Holder | None):
        super().__init__(f"{directory} is being written by {by or 'another process'}")


@contextmanager
def held(directory: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Holds the directory's lock while the body runs; takes it over, and says so, from a process that died with it.

    Raises:
        LockedError: If a live process holds it for `patience_s`; a negative number waits for good.
    """
    lock = FileLock(directory / NAME)
    try:
        lock.acquire(patience_s, poll_interval=0.02)
    except Timeout:
        raise LockedError(directory, _read(directory)) from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        said = "this file system has no locks; make sure that no other process runs it"
        print(f"{directory / NAME}: {said}", file=sys.stderr)
    try:
        if (gone := _read(directory)) is not None:
            print(f"{directory}: taken over from {gone}, which is gone", file=sys.stderr)
        job = os.environ.get("SLURM_JOB_ID")
        this = Holder(socket.gethostname(), os.getpid(), job, time.time())
        atomic.replace_json(directory / HOLDER, asdict(this))
        yield
    finally:
        (directory / HOLDER).unlink(missing_ok=True)
        lock.release()


def holder(directory: Path) -> Holder | None:
    """Returns the live process that holds the directory, or None; a dead one's lock counts for nothing.

    Where the lock may not be opened, a directory of another user, the process that holder.json names counts as alive.
    """
    if not (directory / NAME).is_file():
        return None
    try:
        with FileLock(directory / NAME).acquire(0.05, poll_interval=0.01):
            return None
    except Timeout:
        return _read(directory) or Holder("an unknown machine", 0, None, time.time())
    except OSError:
        return _read(directory)


def _read(directory: Path) -> Holder | None:
    """Returns what holder.json says; None if there is none."""
    try:
        return Holder(**atomic.read_json(directory / HOLDER))
    except TypeError:
        return None
