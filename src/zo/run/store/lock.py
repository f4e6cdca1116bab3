"""One live process per run directory: a lock that the operating system gives back when its owner dies.

The lock is `flock` on the file `lock`, so it ends with the process, however that ends, and works between the nodes of a
cluster wherever the shared file system passes it on (NFS does; Lustre where it is mounted with `flock`). What the file
says is for people: who holds the lock, or held it last.
"""

import errno
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

NAME = "lock"
PATIENCE_S = 1.0
"""Seconds that `held` tries for: `holder` takes the lock for an instant to see whether it is free."""

UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


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

    @classmethod
    def this(cls) -> "Holder":
        """Returns this process."""
        return cls(socket.gethostname(), os.getpid(), os.environ.get("SLURM_JOB_ID"), time.time())


class LockedError(RuntimeError):
    """Another live process holds the run's directory."""

    def __init__(self, directory: Path, by: Holder | None):
        super().__init__(f"{directory} is being written by {by or 'another process'}")
        self.holder = by


@contextmanager
def held(directory: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Holds the directory's lock while the body runs; takes it over, and says so, from a process that died with it.

    Raises:
        LockedError: If a live process holds it for `patience_s`.
    """
    with (directory / NAME).open("a+", encoding="utf-8") as file:
        if not _lock(file, patience_s):
            raise LockedError(directory, _read(file))
        if (gone := _read(file)) is not None:
            print(f"{directory}: taken over from {gone}, which is gone", file=sys.stderr)
        _write(file, json.dumps(asdict(Holder.this())))
        try:
            yield
        finally:
            _write(file, "")


def holder(directory: Path) -> Holder | None:
    """Returns the live process that holds the directory, or None; a dead one's lock counts for nothing."""
    try:
        with (directory / NAME).open("r", encoding="utf-8") as file:
            if _lock(file, patience_s=0.0, shared=True):
                return None
            unknown = Holder("an unknown machine", 0, None, os.fstat(file.fileno()).st_mtime)
            return _read(file) or unknown
    except (FileNotFoundError, NotADirectoryError):
        return None


def _lock(file: IO[str], patience_s: float, shared: bool = False) -> bool:
    """Takes the lock, until `file` is closed; returns whether it could."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            if not shared:
                print(
                    f"{file.name}: this file system has no locks; make sure that no other process runs it",
                    file=sys.stderr,
                )
            return True


def _read(file: IO[str]) -> Holder | None:
    """Returns what the lock file says; None if that is nothing, or half a line."""
    file.seek(0)
    try:
        return Holder(**json.loads(file.read()))
    except (ValueError, TypeError):
        return None


def _write(file: IO[str], text: str) -> None:
    file.seek(0)
    file.truncate()
    file.write(text)
    file.flush()
