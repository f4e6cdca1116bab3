"""The run's side of the processes that call reward functions: it sends requests and gets plain data."""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from zo.rewards.calls import Request

SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""Endings of environment variables that a sandboxed grader does not get."""

CLOSING_S = 10.0


@dataclass(frozen=True)
class Setup:
    """Settings of graders.

    Attributes:
        functions: Addresses, `module:function` or `file.py:function`, or a grader's name.
        columns: Columns of the data.
        options: Of `reasoning_gym`: the task's `name` and `options`.
        timeout: Seconds that a call may take.
        memory_gib: Data memory of each process, GiB.
        sandbox: Whether graders are sandboxed, see `zo.rewards.confine`.
        path: Where modules are imported from.
    """

    functions: Sequence[str]
    columns: Sequence[str] = ()
    options: dict[str, Any] = field(default_factory=dict)
    timeout: float = 10.0
    memory_gib: float = 4.0
    sandbox: bool = True
    path: Sequence[str] = field(default_factory=lambda: [p or os.getcwd() for p in sys.path])


@dataclass(frozen=True)
class Task:
    """A call of one function.

    Attributes:
        function: Its index.
        request: The texts; None: only start a grader.
        limit_s: Seconds that the call may take.
    """

    function: int
    request: Request | None
    limit_s: float


class Pool:
    """Graders, each in its own process with a supervisor; they end with this object or with this process.

    Args:
        setup: Their settings.
        size: Their number.
    """

    def __init__(self, setup: Setup, size: int):
        self._setup = setup
        self._supervisors = [_Supervised(setup) for _ in range(size)]
        weakref.finalize(self, _close, self._supervisors)

    def __len__(self) -> int:
        return len(self._supervisors)

    def start(self) -> list[dict[str, Any]]:
        """Starts all graders; returns the first answer of each."""
        return self.call([Task(0, None, 0.0)] * len(self))

    def call(self, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        """Returns the answer to each task, see `zo.rewards.calls.rate`.

        The answer to a failed call has `failed` (`hang`, `exit`, `raise`, `memory`, `length`, or `unusable` if there is
        no such function) and the reason in `said`. All have `seconds`, and may have `printed` and `left`, a number of
        processes.
        """
        waiting = deque(enumerate(tasks))
        answers: list[dict[str, Any]] = [{}] * len(tasks)
        idle, busy = [*self._supervisors], dict[Connection, tuple[_Supervised, int]]()
        try:
            while waiting or busy:
                while waiting and idle:
                    supervised, (number, task) = idle.pop(0), waiting.popleft()
                    supervised.send(task)
                    busy[supervised.connection] = supervised, number
                for ready in wait([*busy]):
                    assert isinstance(ready, Connection)
                    supervised, number = busy.pop(ready)
                    answers[number] = supervised.answer(tasks[number])
                    idle.append(supervised)
        except BaseException:  # Ctrl-C: what is under way would be the answer to another task
            for supervised, _ in busy.values():
                supervised.restart()
            raise
        return answers


class _Supervised:
    """A grader and its supervisor."""

    def __init__(self, setup: Setup):
        self._setup = setup
        self._start()

    def _start(self) -> None:
        self.connection, end = Pipe()
        env = dict(os.environ)
        env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *self._setup.path])
        if self._setup.sandbox:
            env = {name: of for name, of in env.items() if not name.upper().endswith(SECRET)}
        with end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__.replace("pool", "supervisor"), str(end.fileno())],
                pass_fds=(end.fileno(),),
                start_new_session=True,  # a terminal's Ctrl-C does not reach it
                stdin=subprocess.DEVNULL,
                env=env,
                cwd="/",
            )
        self.connection.send(asdict(self._setup))

    def send(self, task: Task) -> None:
        """Sends a task."""
        request = (
            b"" if task.request is None else pickle.dumps((task.function, tuple(task.request)))
        )
        try:
            self.connection.send((task.limit_s, request))
        except OSError:  # somebody ended it
            self.restart()
            self.connection.send((task.limit_s, request))

    def answer(self, task: Task) -> dict[str, Any]:
        """Waits for the answer to the task."""
        try:
            answer: dict[str, Any] = json.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.restart()
            return {"failed": "exit", "said": "its supervisor was ended", "seconds": 0.0}
        if "values" in answer and not _fits(answer, task):
            said = "its answer does not have a grader's format"
            return {"failed": "raise", "said": said, "seconds": answer["seconds"]}
        return answer

    def restart(self) -> None:
        """Ends the supervisor and its grader, and starts new ones."""
        self.close()
        self._start()

    def close(self) -> None:
        """Ends the supervisor and its grader."""
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSING_S)


def _fits(answer: dict[str, Any], task: Task) -> bool:
    """Returns whether an answer has a number or a reason for each text, and for no others."""
    count = 0 if task.request is None else len(task.request.texts)
    lists = [answer["values"], *answer["extra"].values()]
    numbers = [v for v in answer["values"] if v is not None]
    numbers += [v for values in answer["metrics"].values() for v in values]
    inside = all(0 <= int(i) < count for i in answer["bad"])
    return inside and all(len(of) == count for of in lists) and all(map(math.isfinite, numbers))


def _close(supervisors: Sequence[_Supervised]) -> None:
    for supervised in supervisors:
        supervised.connection.close()
    for supervised in supervisors:
        supervised.close()
