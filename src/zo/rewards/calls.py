"""Calls reward functions, by TRL's contract or with prompts and texts. Runs in a grader's process.

A function that names `completions` or `completion_ids`, or takes `**kwargs`, gets keywords: `prompts`, `completions`,
`completion_ids`, each column of the rows, `trainer_state`, `log_extra` and `log_metric`. Any other function gets a list
of prompts and a list of texts.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

BY_KEYWORD = ("completions", "completion_ids")
"""Arguments that only functions of TRL's contract have."""

TEXTS = ("text", "texts", "completion", "response", "responses")
"""Names of what a model has written."""

GIVEN = ("prompts", *BY_KEYWORD, "trainer_state", "log_extra", "log_metric")
NOT_COLUMNS = ("prompt", "completion", *GIVEN)
"""Columns that are not passed: other arguments have their content."""

FAILED = ("raise", "memory", "length")  # Kinds of failure of a call
SHOWN = 400  # Characters of a logged value, of its name, and of an error message
LARGEST_INT = 1 << 63  # A logged integer of this size is logged as text

NOT_SHOWN = (Path(__file__).parent, Path(asyncio.__file__).parent)
"""Folders that a failure's location skips: code that calls the function."""


class Request(NamedTuple):
    """Texts to be rated."""

    prompts: list[str]  # Their prompts as text
    # Their prompts as lists of messages; None if prompts are not conversations
    messages: list[Any] | None
    texts: list[str]  # What the model wrote
    completion_ids: list[list[int]]  # Its tokens
    columns: dict[str, list[Any]]  # Column -> a value for each text
    references: list[list[str]]  # Right answers of each text; may be empty
    state: dict[str, Any]  # `trainer_state`, such as `global_step`

    def alone(self, i: int) -> Request:
        """Returns the request for one of the texts."""
        return self.part(slice(i, i + 1))

    def part(self, of: slice) -> Request:
        """Returns the request for some of the texts."""
        return Request(
            self.prompts[of],
            None if self.messages is None else self.messages[of],
            self.texts[of],
            self.completion_ids[of],
            {name: values[of] for name, values in self.columns.items()},
            self.references[of],
            self.state,
        )


class Log:
    """What a function logs during a call."""

    def __init__(self) -> None:
        self.dropped = 0  # values of `log_metric` that are no finite numbers, and are left out
        self.extra: dict[str, list[Any]] = {}  # column -> values of `log_extra`, one for each text
        self.metrics: dict[str, list[float]] = {}  # name -> values of `log_metric`

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Adds a column with a value for each text."""
        self.extra.setdefault(str(column)[:SHOWN], []).extend(map(_plain, values))

    def log_metric(self, name: str, value: float) -> None:
        """Adds a number; those of a step are averaged."""
        try:
            number = float(value)
        except Exception:  # a metric does not cost a reward
            number = math.nan
        if math.isfinite(number):
            self.metrics.setdefault(str(name)[:SHOWN], []).append(number)
        else:
            self.dropped += 1


Grader = Callable[[Request, Log], Any]
"""Rates texts: returns a number for each, None to leave it out, or an exception if it cannot be rated."""


class UnusableError(Exception):
    """A function that cannot be loaded or called; one sentence."""


class Function:
    """A reward function of the user or of a library.

    Raises:
        UnusableError: If there is no such function, or it needs an argument that is not available.
    """

    def __init__(self, address: str, columns: Sequence[str]):
        self._call = load(address)
        try:
            parameters = [*inspect.signature(self._call).parameters.values()]
        except (TypeError, ValueError):  # written in C
            parameters = []
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self._names = [p.name for p in named]
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._by_keyword = self._takes_all or not {*BY_KEYWORD}.isdisjoint(self._names)
        if self._by_keyword:
            there = {*GIVEN, *columns} - {"prompt", "completion"}
            needed = [p.name for p in named if p.default is p.empty]
            if missing := [name for name in needed if name not in there]:
                known = ", ".join(sorted({*columns} - {*NOT_COLUMNS})) or "none"
                raise UnusableError(
                    f"{address} needs the argument {missing[0]}, and the data have no such column (there are: {known});"
                    " rename the column or the argument, or give it a default"
                )
        elif parameters and (not _takes_two(parameters) or self._swaps(columns)):
            raise UnusableError(
                f"{address} takes ({', '.join(self._names)}); a function takes (prompts, texts), or completions and"
                " names of columns as keywords"
            )

    def _swaps(self, columns: Sequence[str]) -> bool:
        """Returns whether the names of two arguments say that they are no prompts and texts."""
        others = {"prompt", "prompts", *columns} - {*TEXTS}
        return not {*TEXTS}.isdisjoint(self._names[:1]) or not others.isdisjoint(self._names[1:])

    def __call__(self, request: Request, log: Log) -> Any:
        """Calls the function and returns its result; awaits it if it is asynchronous."""
        if not self._by_keyword:
            found = self._call(request.prompts, request.texts)
        else:
            given = self._keywords(request, log)
            if not self._takes_all:
                given = {name: given[name] for name in self._names if name in given}
            found = self._call(**given)
        return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found

    def _keywords(self, request: Request, log: Log) -> dict[str, Any]:
        chat, texts = request.messages is not None, request.texts
        columns = {name: of for name, of in request.columns.items() if name not in NOT_COLUMNS}
        return columns | {
            "prompts": request.messages if chat else request.prompts,
            "completions": [[{"role": "assistant", "content": t}] for t in texts]
            if chat
            else texts,
            "completion_ids": request.completion_ids,
            "trainer_state": SimpleNamespace(**request.state),
            "log_extra": log.log_extra,
            "log_metric": log.log_metric,
        }


def load(address: str) -> Callable[..., Any]:
    """Returns the function of ``module:function`` or ``file.py:function``. Raises UnusableError without one."""
    place, _, name = address.partition(":")
    try:
        if place.endswith(".py"):
            file = Path(place).expanduser()
            sys.path.insert(0, str(file.parent))  # for what it imports from its folder
            spec = importlib.util.spec_from_file_location(file.stem, file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except BaseException as error:  # whatever the module's own code raises, SystemExit, too
        raise UnusableError(f"{place}: {sentence(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UnusableError(f"{place} has no function {name}")
    return function  # type: ignore[no-any-return]


def rate(grader: Grader, request: Request) -> dict[str, Any]:
    """Returns a grader's answer about some texts, as plain data.

    `values` has a number or None for each text, and `bad` the reason for each text without a usable number. If the
    whole call failed, the answer instead has `failed`, the kind of failure.
    """
    log, count = Log(), len(request.texts)  # which the function may change
    try:
        found = grader(request, log)
        if isinstance(found, str | bytes | Set | Mapping):
            raise TypeError(f"returns a {type(found).__name__}; a list of numbers is needed")
        values = list(found)
    except BaseException as error:  # also SystemExit and KeyboardInterrupt of the function's own
        kind = "memory" if isinstance(error, MemoryError) else "raise"
        said = f"{_place(error)}{sentence(error)}"
        return {"failed": kind, "said": said, "traceback": traceback.format_exc(limit=-20)}
    if len(values) != count:
        counts = f"{len(values)} numbers for {count} texts"
        said = f"returns {counts}; one for each is needed"
        return {"failed": "length", "said": said}
    bad: dict[int, list[str]] = {}
    numbers = [_number(value, i, bad) for i, value in enumerate(values)]
    extra = {name: of for name, of in log.extra.items() if len(of) == len(values)}
    answer = {"values": numbers, "bad": bad, "extra": extra, "metrics": log.metrics}
    return answer | {"dropped": log.dropped}


def sentence(error: BaseException) -> str:
    """Returns an exception's kind and first line."""
    try:
        lines = str(error).splitlines()
    except Exception:  # an exception class may do anything
        lines = []
    return f"{type(error).__name__}: {(lines or [''])[0][:SHOWN]}"


def _number(value: Any, i: int, bad: dict[int, list[str]]) -> float | None:
    """Returns a value as a number; adds kind and reason to `bad` if it is not one."""
    if value is None:
        return None
    if isinstance(value, BaseException):
        bad[i] = ["raise", sentence(value)]
        return None
    try:
        number = float(value)
    except Exception:
        number = math.nan
    if not math.isfinite(number):
        shown = value if isinstance(value, float) else _plain(value)
        bad[i] = ["value", f"returns {shown!r}; a finite number is needed"]
        return None
    return number


def _plain(value: Any) -> Any:
    """Returns a value of JSON's types; others as text."""
    if value is None or (isinstance(value, int) and abs(value) < LARGEST_INT):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    try:
        return str(value)[:SHOWN]
    except Exception:
        return type(value).__name__


async def _awaited(found: Any) -> Any:
    return await found


def _takes_two(parameters: Sequence[inspect.Parameter]) -> bool:
    """Returns whether a function can be called with two positional arguments."""
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in places if p.default is p.empty]
    named = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return not named and len(needed) <= 2 and (any_number or len(places) >= 2)


def _place(error: BaseException) -> str:
    """Returns file and line of the last call in the function's own file."""
    every = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in every if Path(frame.filename).parent not in NOT_SHOWN]
    lines = [frame.lineno for frame in own if frame.filename == own[0].filename]
    return f"{own[0].filename}:{lines[-1]}: " if lines else ""
