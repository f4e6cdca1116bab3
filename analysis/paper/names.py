"""Names in print, and their order: methods, tasks, models and sweeps, out of names.yaml."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

_NAMES = yaml.safe_load(Path(__file__).with_name("names.yaml").read_text(encoding="utf-8"))
METHODS: dict[str, dict[str, Any]] = _NAMES["methods"]
TASKS: dict[str, dict[str, Any]] = _NAMES["tasks"]
MODELS: dict[str, dict[str, Any]] = _NAMES["models"]
SWEEPS: dict[str, dict[str, Any]] = _NAMES["sweeps"]
ZERO_SHOT = "zero_shot"
UNTRAINED = (ZERO_SHOT, "icl", "linear_probe")
"""Baselines without steps, and so without a learning rate."""
BACKPROPAGATING = {"adam", "sgd"}


def method_label(method: str) -> str:
    """The name of a method in print, or the words of a `variant_name`."""
    key, _, words = method.partition("=")
    return words or METHODS.get(key, {"name": key})["name"]


def line_label(line: str) -> str:
    """A line's name in print."""
    method, comma, words = line.partition(",")
    return method_label(method) + comma + words


def variant_name(method: str, i: int, of: int, words: str) -> str:
    """The name of the i-th of several variants of one method, from which `look` makes a look of its own."""
    return f"{method}:{i}/{of}={words}"


def plain(method: str) -> str:
    """The method that a variant is of."""
    return method.partition("=")[0].partition(":")[0]


def uncounted(methods: Iterable[str]) -> tuple[str, ...]:
    """What passes do not count, a sentence for each of some methods that backpropagates."""
    found = {plain(method) for method in methods} & BACKPROPAGATING
    said = "forward passes alone; each step's backward pass costs about two more"
    return tuple(f"{method_label(method)}: {said}" for method in sorted(found))


def task_label(task: str) -> str:
    """A task's name in print."""
    return TASKS.get(task, {"name": task})["name"]


def model_label(model: str) -> str:
    """A model's name in print."""
    return MODELS.get(model, {"name": model})["name"]


LABELS = {"model": model_label, "task": task_label, "method": method_label}
"""What a value belongs to -> what makes its name in print."""


def method_order(method: str) -> tuple[int, str]:
    """Sorts methods as the tables do: zero-shot, the paper's, the others by name."""
    names = list(METHODS)
    own = plain(method)
    return (names.index(own) if own in names else len(names), method)
