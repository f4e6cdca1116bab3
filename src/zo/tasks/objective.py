"""Settings of the objective: the loss that a step reduces."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from zo.optim.config import AtLeast0, AutoCount, Positive, Range, Rule, Settings, one_of
from zo.tasks.config import TaskConfig

NAMES = (
    *("task", "classification", "lm", "completion"),
    *("dpo", "simpo", "metric", "generation", "reward"),
)
OF_PAIRS = ("dpo", "simpo")  # Objectives of preferences
OF_TEXT = ("generation", "reward")  # Objectives that generate text

NAMED_GRADERS = ("math_verify", "reasoning_gym")
"""Values of `objective.function` that name a grader instead of a function, see `zo.rewards.named`."""

FITS = {
    "classification": ("classification",),
    "metric": ("classification",),
    "lm": ("classification", "completion"),
    "completion": ("completion",),
    "generation": ("completion",),
    "reward": ("completion", "prompts"),
    **dict.fromkeys(OF_PAIRS, ("preference",)),
}
"""Objective -> kinds of tasks that it can be used with."""

GRADING = ("on_error", "timeout", "memory_gib", "sandbox")
READS: dict[str, tuple[str, ...]] = {
    "dpo": ("beta",),
    "simpo": ("beta", "gamma"),
    "metric": ("metric",),
    "reward": ("function", "functions", *GRADING),
}
"""Objective -> keys that it reads; others read none."""

ADDRESS = f"module:function, file.py:function, {' or '.join(NAMED_GRADERS)}"


def _is_address(function: str) -> bool:
    return function in NAMED_GRADERS or all(function.partition(":")[::2])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass
class ObjectiveConfig(Settings):
    """The loss that a step reduces.

    Attributes:
        name: one of `NAMES`. ``task``: the task's own. ``classification``: cross entropy over the candidates.
            ``lm``, ``completion``: negative log-likelihood of the true candidate or the completion, per token.
            ``metric``: a measure of the mini-batch's predictions, negated.
            ``generation``: `task.measure` of generated texts, negated.
            ``reward``: the mean of a function of prompts and generated texts, negated.
            ``dpo``, ``simpo``: −log σ of the margin between the chosen and the rejected answer, see
            `zo.lm.scoring.preferences`.
        beta: of ``dpo`` and ``simpo``: factor of the rewards, > 0.
        gamma: of ``simpo``: margin that the rewards are to have, ≥ 0.
        metric: of ``metric``: ``accuracy``, or ``f1``, the mean over the classes.
        function: of ``reward``: ``module:function`` or ``file.py:function``, see docs/rewards.md; or a grader's name,
            one of `NAMED_GRADERS`. Larger numbers are better.
        functions: instead of `function`: several, each with its weight.
        on_error: reward of a text that a function cannot rate, or ``stop``, which ends the run. None: 0 for a named
            grader, ``stop`` for other functions.
        timeout: seconds, > 0, that a function may take for a text before its process is killed.
        memory_gib: data memory of a function's process, > 0, GiB.
        sandbox: blocks the network, other processes, and writing outside of a scratch directory.
        workers: processes that call functions, ≥ 1; None: one per core, at most four. Not part of a run's identity.
    """

    name: Annotated[str, one_of(*NAMES)] = "task"
    metric: Annotated[str, one_of("accuracy", "f1")] = "accuracy"
    beta: Positive = 0.1
    gamma: AtLeast0 = 1.0
    function: Annotated[
        str | None, Range(lambda x: x is None or _is_address(x), f"must be {ADDRESS}")
    ] = None
    functions: Annotated[
        dict[str, float],
        Range(lambda x: all(map(_is_address, x)), f"must be {{{ADDRESS}: weight, ...}}"),
    ] = field(default_factory=dict)
    on_error: Annotated[
        Any, Range(lambda x: x in (None, "stop") or _is_number(x), "must be stop or a number, as 0")
    ] = None
    timeout: Positive = 10.0
    memory_gib: Positive = 4.0
    sandbox: bool = True
    workers: AutoCount = None

    rules = (
        Rule("function", lambda of: not of.functions or of.function is None, "must be null beside objective.functions"),
        Rule("functions",
             lambda of: all(isinstance(w, int | float) and math.isfinite(w) for w in of.functions.values()),
             "must have finite weights"),
    )  # fmt: skip

    def of(self, task: TaskConfig) -> str:
        """Returns the objective's name; without one the task's objective."""
        if self.name != "task":
            return self.name
        own = {"completion": "completion", "prompts": "reward", "preference": "dpo"}
        return own.get(task.kind, task.objective)

    def unread(self, task: TaskConfig) -> Iterator[tuple[str, Any, str]]:
        """Yields keys that a run on a task does not read, and that have other values than their defaults.

        Each is with its value and with what reads it.
        """
        read = READS.get(self.of(task), ()) + (GRADING if task.own_measure else ())
        default = ObjectiveConfig()
        for key in dict.fromkeys(key for keys in READS.values() for key in keys):
            if key not in read and getattr(self, key) != getattr(default, key):
                of = [f"objective={name}" for name, keys in READS.items() if key in keys]
                yield f"objective.{key}", getattr(self, key), " and ".join(of)

    def rated_by(self, task: TaskConfig) -> dict[str, float]:
        """Returns the weight of each function that rates a task's texts, by its address or name."""
        if self.functions:
            return dict(self.functions)
        generated = "reasoning_gym" if task.generated_by() else None
        function = self.function or generated
        return {} if function is None else {function: 1.0}

    def code(self) -> list[str]:
        """Returns the addresses of functions that are not named graders."""
        every = [*self.functions, *([self.function] if self.function else [])]
        return [address for address in every if address not in NAMED_GRADERS]

    def replacement(self, address: str) -> float | None:
        """Returns the reward of a text that a function cannot rate; None if the run stops."""
        if self.on_error is None:
            return 0.0 if address in NAMED_GRADERS else None
        return None if self.on_error == "stop" else float(self.on_error)
