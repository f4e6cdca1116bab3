"""Rates texts by the processes of a pool, and finds the text that makes one of them end or hang."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zo.rewards.calls import Request
from zo.rewards.pool import Pool, Setup, Task
from zo.rewards.tally import Failure, Ratings
from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.objective import NAMED_GRADERS, ObjectiveConfig

MOST_TEXTS = 64  # Most texts of a call
MOST_WORKERS = 4
SLOWER = 5  # A call that takes this many times longer than usual is repeated with each text alone
LEAST_S = 1.0
SHARE = 4  # A call has so few texts that it usually needs only one in so many parts of its timeout
OF_THE_CALL = ("raise", "length")  # Failures of a function; others may be of a slow or full machine
Answer = dict[str, Any]


class RewardError(TaskError):
    """A text that a reward function cannot rate; the cause has the function's traceback."""

    traceback = True


class FunctionTraceback(Exception):
    """The traceback of a function in the process that called it."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Rater:
    """Rates texts by one or several functions."""

    def __init__(self, objective: ObjectiveConfig, task: TaskConfig):
        functions = objective.rated_by(task)
        self.key = "task.measure" if objective.name == "measure" else "objective.function"
        self._addresses, self._weights = [*functions], [*functions.values()]
        self.names = _names(self._addresses)  # in logs
        pairs = zip(self.names, self._addresses, strict=True)
        self.own = [name for name, address in pairs if address not in NAMED_GRADERS]
        self.notes: list[str] = []  # sentences for the log; known after `start`
        self._replacements = [objective.replacement(address) for address in functions]
        self._setup = Setup(
            functions=[_absolute(address) for address in functions],
            options=task.generated_by(),
            timeout=objective.timeout,
            memory_gib=objective.memory_gib,
            sandbox=objective.sandbox,
        )
        self._size = objective.workers or _cores()
        self._pool: Pool | None = None
        self._seconds: dict[int, float] = {}

    def start(self, columns: Sequence[str]) -> None:
        """Starts the processes, for rows with these columns. Raises TaskError if a function cannot be called."""
        self._pool = Pool(replace(self._setup, columns=columns), self._size)
        for answer in self._pool.start():
            self._check_usable(answer)
        if self._setup.sandbox:
            self.notes = _missing(answer["barriers"])

    def rate(self, request: Request, rows: Sequence[int], together: bool = False) -> Ratings:
        """Returns the ratings of texts, of these rows of their file; a function gets all in one call if `together`.

        Raises:
            RewardError: If a function cannot rate a text, and no replacement is set.
        """
        if self._pool is None:
            self.start([*request.columns])
        found = Ratings([])
        values = [self._column(f, request, found, together) for f in range(len(self._addresses))]
        found.failures.sort(key=lambda failure: failure.index)
        for failure in found.failures:
            f = self.names.index(failure.function)
            if self._replacements[f] is None:
                said = f"{self._addresses[f]}: {failure.said} (row {rows[failure.index]})"
                cause = FunctionTraceback(failure.traceback) if failure.traceback else None
                raise RewardError(f"{self.key}: {said}") from cause
            values[f][failure.index] = self._replacements[f]
        found.values = dict(zip(self.names, values, strict=True))
        found.totals = [*map(self._total, zip(*values, strict=True))]
        return found

    def _total(self, values: Sequence[float | None]) -> float | None:
        """Returns the weighted sum of the numbers; None if there are none."""
        rated = [w * v for w, v in zip(self._weights, values, strict=True) if v is not None]
        return math.fsum(rated) if rated else None

    def _column(
        self, f: int, request: Request, found: Ratings, together: bool
    ) -> list[float | None]:
        """Returns a function's numbers; adds its failures to `found`, by the index of the text."""
        count = len(request.texts)
        values: list[float | None] = [None] * count
        size = count if together else self._texts(f, count)
        parts = [slice(i, min(i + size, count)) for i in range(0, count, size)]
        answers = self._call(f, request, parts)
        failed = [
            ("failed" in a and p.stop - p.start > 1) for p, a in zip(parts, answers, strict=True)
        ]
        several = [p for p, again in zip(parts, failed, strict=True) if again]
        alone = [slice(i, i + 1) for p in several for i in range(p.start, p.stop)]
        each = iter(self._call(f, request, alone))
        for part, answer, again in zip(parts, answers, failed, strict=True):
            if not again:
                self._take(f, part, answer, values, found)
                continue
            before = len(found.failures)
            for i in range(part.start, part.stop):
                self._take(f, slice(i, i + 1), next(each), values, found)
            wrong = answer["failed"] in OF_THE_CALL and len(found.failures) == before
            if wrong and self._replacements[f] is None:  # no text is the reason
                self._take(f, part, answer, values, found)
        return values

    def _texts(self, f: int, count: int) -> int:
        """Returns how many texts a call has: so few that it ends long before its timeout."""
        most = MOST_TEXTS
        if seconds := self._seconds.get(f):
            most = min(most, max(1, int(self._setup.timeout / (SHARE * seconds))))
        return min(most, -(-count // self._size))

    def _call(self, f: int, request: Request, parts: Sequence[slice]) -> list[Answer]:
        """Returns the answers to calls of a function, each with some of the texts."""
        counts = [part.stop - part.start for part in parts]
        pairs = zip(parts, counts, strict=True)
        assert self._pool is not None
        answers = self._pool.call([Task(f, request.part(p), self._limit(f, n)) for p, n in pairs])
        for count, answer in zip(counts, answers, strict=True):
            self._check_usable(answer)
            if "failed" not in answer:
                self._seconds[f] = max(answer["seconds"], 1e-6) / count
        return answers

    def _limit(self, f: int, count: int) -> float:
        """Returns the timeout of a call; with several texts it is shorter, and after it each is rated alone."""
        usual = self._seconds.get(f)
        if count == 1 or usual is None:
            return self._setup.timeout
        return min(self._setup.timeout, max(LEAST_S, SLOWER * usual * count))

    def _take(
        self, f: int, part: slice, answer: Answer, values: list[float | None], found: Ratings
    ) -> None:
        """Adds an answer about some texts to `values` and `found`."""
        name = self.names[f]
        if printed := answer.get("printed"):
            found.printed.append(str(printed))
        found.left += int(answer.get("left", 0))
        found.dropped += int(answer.get("dropped", 0))
        if "failed" in answer:
            told = (name, str(answer["failed"]), str(answer["said"]), answer.get("traceback", ""))
            found.failures.append(Failure(part.start, *told))
            return
        values[part] = answer["values"]
        for i, (kind, said) in answer["bad"].items():
            found.failures.append(Failure(part.start + int(i), name, kind, said))
        for column, of in answer["extra"].items():
            empty: list[Any] = [None] * len(values)
            found.extra.setdefault(column, empty)[part] = of
        for metric, numbers in answer["metrics"].items():
            found.metrics.setdefault(metric, []).extend(numbers)

    def _check_usable(self, answer: Answer) -> None:
        if answer.get("failed") == "unusable":
            raise TaskError(f"{self.key}: {answer['said']}")


def _names(addresses: Sequence[str]) -> list[str]:
    """Returns the functions' names in logs: their own names, or their addresses if two are the same."""
    short = [address.rpartition(":")[2] for address in addresses]
    pairs = zip(short, addresses, strict=True)
    return [name if short.count(name) == 1 else address for name, address in pairs]


def _absolute(address: str) -> str:
    """Returns an address that does not depend on the working directory."""
    place, _, name = address.partition(":")
    return f"{Path(place).expanduser().resolve()}:{name}" if place.endswith(".py") else address


def _cores() -> int:
    """Returns the default number of graders."""
    beside = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    every = hasattr(os, "sched_getaffinity")  # not on macOS
    cores = len(os.sched_getaffinity(0)) if every else os.cpu_count() or 1
    return max(1, min(MOST_WORKERS, cores // beside))


def _missing(barriers: Mapping[str, bool]) -> list[str]:
    """Returns a sentence about barriers that are missing on this machine."""
    found = {
        "processes": "no namespaces: a text that runs code can send signals to your processes",
        "network": "no seccomp filter: a text that runs code can use the network",
        "files": "no Landlock: a text that runs code can write where you can",
    }
    return [
        f"objective.sandbox: this kernel permits {said}"
        for name, said in found.items()
        if not barriers.get(name)
    ]
