"""Named graders: `math_verify`, and `reasoning_gym`, the scorers of its tasks."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zo.rewards import filters
from zo.rewards.calls import Function, Grader, Log, Request, UnusableError

EVALUATED: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(("countdown", "puzzle24"), filters.is_sum),
    **dict.fromkeys(
        ("simple_integration", "intermediate_integration", "polynomial_multiplication"),
        filters.is_formula,
    ),
    **dict.fromkeys(
        ("spiral_matrix", "string_insertion", "binary_matrix", "n_queens"), filters.is_literal
    ),
}
"""Task of reasoning-gym whose scorer evaluates the text -> filter of the texts that may be evaluated."""

NO_ANSWER = "?"  # Scored instead of a text that may not be evaluated; no such scorer can parse it
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class MathVerify:
    """Rates whether a text's answer equals a reference, by math-verify, within `timeout` seconds for a text."""

    def __init__(self, timeout: float):
        _require("math_verify")
        # Of a text and a reference, to read and to compare
        self._seconds = max(1, int(timeout // 4))

    def __call__(self, request: Request, log: Log) -> list[float | None]:
        """Returns 1 or 0 for each text; None if no reference can be parsed."""
        return [
            self._rated(text, references)
            for text, references in zip(request.texts, request.references, strict=True)
        ]

    def _rated(self, text: str, references: Sequence[str]) -> float | None:
        from math_verify import parse, verify

        def read(what: str) -> list[Any]:
            return list(parse(what, parsing_timeout=self._seconds))

        right = [found for of in references if (found := read(_formula(of)) or read(of))]
        if not right:
            return None
        given = read(text)
        return float(any(verify(one, given, timeout_seconds=self._seconds) for one in right))


def _formula(reference: str) -> str:
    """Returns a reference as LaTeX: math-verify reads a bare formula's numbers alone."""
    marked = any(mark in reference for mark in ("$", "\\(", "\\[", "\\boxed", "####", "\n"))
    words = re.search(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}", reference)
    return reference if marked or words else f"${reference.strip()}$"


class ReasoningGym:
    """Rates texts by the scorer of a task of reasoning-gym."""

    def __init__(self, name: str, options: Mapping[str, Any]):
        _require("reasoning_gym")
        from zo.tasks.config import TaskError
        from zo.tasks.generated import dataset

        try:
            self._dataset = dataset(name, options)
        except TaskError as error:
            raise UnusableError(str(error)) from None

    def __call__(self, request: Request, log: Log) -> list[float | Exception]:
        """Returns each text's score, 0 to 1, or the exception of its scorer."""
        columns = [request.columns[key] for key in ("question", "answer", "metadata")]
        entries = zip(*columns, strict=True)
        return [
            self._rated(text, {"question": question, "answer": answer, "metadata": metadata})
            for text, (question, answer, metadata) in zip(request.texts, entries, strict=True)
        ]

    def _rated(self, text: str, entry: dict[str, Any]) -> float | Exception:
        answer = answer_of(text)
        harmless = EVALUATED.get(entry["metadata"].get("source_dataset", ""))
        if harmless is not None and not harmless(answer):
            answer = NO_ANSWER
        try:
            return float(self._dataset.score_answer(answer, entry))
        except Exception as error:
            return error


def answer_of(text: str) -> str:
    """Returns the content of the last `<answer>` tags, or the whole text."""
    found = ANSWER.findall(text)
    return str(found[-1] if found else text).strip()


def grader(
    address: str, columns: Sequence[str], options: Mapping[str, Any], timeout: float
) -> Grader:
    """Returns the grader of a grader's name, `module:function` or `file.py:function`, for data with some columns.

    `options` are the `name` and `options` of reasoning-gym's task, `timeout` is in seconds for a text.

    Raises:
        UnusableError: If it does not exist, or its package is missing.
    """
    if address == "math_verify":
        return MathVerify(timeout)
    if address == "reasoning_gym":
        return ReasoningGym(options["name"], options["options"])
    return Function(address, columns)


def _require(module: str) -> None:
    """Checks that a package is installed."""
    if importlib.util.find_spec(module) is None:
        remedy = "`pip install 'zo-suite[rewards]'` installs it"
        raise UnusableError(f"{module} is not installed; {remedy}")
