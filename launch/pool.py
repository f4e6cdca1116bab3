"""Runs as child processes of this one, several at a time: each its own run with its own log, told of every signal."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from zo.distributed.config import follows
from zo.run.signals import CTRL_C, INTERRUPTED
from zo.run.store.atomic import read_json, replace_json
from zo.run.store.lock import holder

RUN = (sys.executable, "-m", "zo", "resume", "--trust")
"""The command that makes or continues the run in a directory, which follows."""

DONE, BUSY = 0, os.EX_TEMPFAIL
STOPPED = (INTERRUPTED, CTRL_C, -signal.SIGINT, -signal.SIGTERM, -signal.SIGUSR2)
"""Its exit statuses: finished or collapsed; another live process has the directory; stopped and saved. Others fail."""

HEEDED = (signal.SIGTERM, signal.SIGUSR2)
POLL_S = 0.1
BUSY_S, BUSY_LIMIT_S = 10.0, 600.0
"""A busy directory is tried again this often and this long: a node that was given up may take a while to die."""


@dataclass
class Pool:
    """Runs that are to be made here."""

    directories: Sequence[Path]  # Of the runs, frozen
    # As many runs at once; the variables of each, as {"CUDA_VISIBLE_DEVICES": "1"}
    slots: Sequence[Mapping[str, str]]
    codes: dict[Path, int] = field(default_factory=dict)  # Exit status of every run that ended
    signals: list[int] = field(default_factory=list)  # What this process was sent

    def __post_init__(self) -> None:
        self._waiting = dict.fromkeys(self.directories, 0.0)  # until when
        self._free = deque(self.slots)
        self._running: dict[Path, tuple[subprocess.Popen[bytes], Mapping[str, str]]] = {}
        self._busy_since: dict[Path, float] = {}

    def run(self) -> None:
        """Makes the runs, until all have ended or, after a signal, those have that were started.

        Signals are passed on; afterwards the handlers that were there are back.
        """
        before = {number: signal.signal(number, self._heed) for number in HEEDED}
        try:
            while self._running or (self._waiting and not self.signals):
                due = [path for path, at in self._waiting.items() if at <= time.monotonic()]
                for path in due[: len(self._free)]:
                    self._start(path)
                self._collect()
                time.sleep(POLL_S)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @property
    def unfinished(self) -> list[Path]:
        """Runs that were stopped or never started."""
        return [d for d in self.directories if self.codes.get(d, INTERRUPTED) in STOPPED]

    @property
    def failures(self) -> list[str]:
        """A sentence for every run that failed."""
        return [
            f"{path.name}: {_why(path, code)}"
            for path, code in self.codes.items()
            if code != DONE and code not in STOPPED
        ]

    def _start(self, path: Path) -> None:
        if self.signals:
            return
        del self._waiting[path]
        slot = self._free.popleft()
        with log_of(path).open("ab") as log:
            _head(log, slot)
            child = subprocess.Popen(
                [*RUN, str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **slot},
            )
        self._running[path] = child, slot
        if self.signals:  # came between the last look and the start
            child.terminate()

    def _collect(self) -> None:
        for path, (child, slot) in list(self._running.items()):
            code = child.poll()
            if code is None:
                continue
            del self._running[path]
            self._free.append(slot)
            since = self._busy_since.setdefault(path, time.monotonic())
            if code == BUSY and time.monotonic() - since < BUSY_LIMIT_S:
                self._waiting[path] = time.monotonic() + BUSY_S
            else:
                self.codes[path] = code
                if code not in (DONE, BUSY, *STOPPED) and not follows():
                    _note_failure(path, code)

    def _heed(self, number: int, _: FrameType | None) -> None:
        self.signals.append(number)
        for child, _slot in self._running.values():
            child.send_signal(number)


def _head(log: IO[bytes], slot: Mapping[str, str]) -> None:
    """Says in a run's log where and when it starts."""
    where = os.uname().nodename
    if job := os.environ.get("SLURM_JOB_ID"):
        where += f", SLURM job {job}, restart {os.environ.get('SLURM_RESTART_COUNT', '0')}"
    gpus = slot.get("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
    devices = f", CUDA_VISIBLE_DEVICES={gpus}" if gpus is not None else ""
    log.write(f"== {time.strftime('%Y-%m-%d %H:%M:%S')} {where}{devices}\n".encode())
    log.flush()


def _note_failure(path: Path, code: int) -> None:
    """Makes sure that a run's status says that it failed, where it ended too early or too suddenly to say so itself."""
    said = read_json(path / "status.json").get("run/status")
    if said != "failed" and holder(path) is None:
        failed = {"run/status": "failed", "run/error": _why(path, code)}
        replace_json(path / "status.json", failed)


def _why(path: Path, code: int) -> str:
    """Returns what a run's log ends with."""
    if code == BUSY:
        return f"another process has held {path} for {BUSY_LIMIT_S / 60:.0f} minutes"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}, see {log_of(path)}"
    lines = log_of(path).read_text(errors="replace", encoding="utf-8").strip().splitlines()
    return f"{lines[-1].strip()} (exit status {code}), see {log_of(path)}"


def log_of(path: Path) -> Path:
    """Returns the file for what a run prints; of several processes each has its own."""
    return path / (f"log-{os.environ['RANK']}.txt" if follows() else "log.txt")


def slots(gpus: Sequence[str], count: int, threads: int | None = None) -> list[dict[str, str]]:
    """Returns slots that go round the GPUs, if any, and share the cores out evenly unless OMP_NUM_THREADS is set."""
    share = threads or max(1, len(os.sched_getaffinity(0)) // count)
    given = threads is None and "OMP_NUM_THREADS" in os.environ
    own = {} if given else {"OMP_NUM_THREADS": str(share)}
    devices = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus] or [{}]
    return [{**own, **devices[i % len(devices)]} for i in range(count)]
