"""Settings of the objective: what a step makes smaller."""

from __future__ import annotations

from dataclasses import dataclass

from zo.tasks.config import TaskConfig

NAMES = ("task", "classification", "lm", "completion", "metric", "generation", "reward")
OF_TEXT = ("generation", "reward")
"""Objectives that generate text."""

FITS = {
    "classification": ("classification",),
    "metric": ("classification",),
    "lm": ("classification", "completion"),
    "completion": ("completion",),
    "generation": ("completion",),
    "reward": ("completion", "prompts"),
}
"""Objective -> kinds of tasks that it can be used with."""


@dataclass
class ObjectiveConfig:
    """What a step makes smaller.

    Attributes:
        name: one of `NAMES`. ``task``: the task's own. ``classification``: cross entropy over the candidates.
            ``lm``, ``completion``: negative log-likelihood of the true candidate or the completion, per token.
            ``metric``: a measure of the mini-batch's predictions, negated.
            ``generation``: `task.measure` of generated texts, negated.
            ``reward``: the mean of a function of prompts and generated texts, negated.
        metric: of ``metric``: ``accuracy``, or ``f1``, the mean over the classes.
        function: of ``reward``: ``module:function`` or ``file.py:function``; takes a list of prompts and a list of
            texts, returns a number for each, larger is better.
    """

    name: str = "task"
    metric: str = "accuracy"
    function: str | None = None

    def of(self, task: TaskConfig) -> str:
        """Returns the objective's name, the task's own where none is given."""
        if self.name != "task":
            return self.name
        return {"completion": "completion", "prompts": "reward"}.get(task.kind, task.objective)

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, what would be right) of every value out of range."""
        found = []
        if self.name not in NAMES:
            found.append(("name", f"must be one of {', '.join(NAMES)}"))
        if self.metric not in ("accuracy", "f1"):
            found.append(("metric", "must be accuracy or f1"))
        if self.function is not None and not all(self.function.partition(":")[::2]):
            found.append(("function", "must be module:function or file.py:function"))
        return found
