"""Training, validation and test examples that reasoning-gym generates; no two splits share a question.

Item i of a data set comes from Random(seed + i), so the seeds of two splits differ by more than their sizes. Questions
of an earlier split are skipped, too, since a task may have few different ones.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from zo.extras import progress, unusable
from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.examples import Example, Splits
from zo.tasks.reading import MISSING_PACKAGE
from zo.tasks.templates import task_columns

APART = 10**6  # Seeds between splits; more than a split has items
MOST_SETS = 4_000  # Number of training sets, so that seeds stay below numpy's 2³²
ROUNDS = 20  # Items that a split may try, as a multiple of its size, to find new questions
OWN = ("question", "answer", "metadata")
GIVEN = {"seed": "task.train_set_seed", "size": "task.train_size and the like"}
MESSAGES = "messages"  # Column with the question as a conversation, for a chat template


def dataset(name: str, options: Mapping[str, Any], seed: int = 0, size: int = 10) -> Any:
    """Returns a data set of reasoning-gym. Raises TaskError without the package, the task or an option."""
    try:
        import reasoning_gym
        from reasoning_gym.composite import DatasetSpec
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError:
        raise TaskError(MISSING_PACKAGE) from None
    except ImportError as error:
        raise TaskError(f"task.path: {unusable('reasoning-gym', error)}") from None
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, 3) or sorted(DATASETS)[:5]
        meant = f"did you mean {', '.join(near)}?"
        raise TaskError(f"task.name={name}: reasoning-gym has no such task; {meant}")
    given = dict(options)
    for key in GIVEN.keys() & given.keys():
        raise TaskError(f"task.options={given}: give {GIVEN[key]} instead of {key}")
    if name == "composite" and given.get("datasets"):
        usual = {"weight": 1.0, "config": {}}
        given["datasets"] = [DatasetSpec(**{**usual, **of}) for of in given["datasets"]]
    try:
        return reasoning_gym.create_dataset(name, seed=seed, size=size, **given)
    except (TypeError, ValueError, AssertionError, KeyError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0].split("__init__() ")[-1]
        raise TaskError(f"task.options={dict(options)}: {name}: {why}") from None


def load_generated(task: TaskConfig) -> Splits:
    """Returns the splits of a generated task. Raises TaskError if it cannot be generated as configured."""
    sizes = {name: getattr(task, f"{name}_size") for name in ("test", "validation", "train")}
    for name, size in sizes.items():
        if size is None or size >= APART // ROUNDS:
            right = f"must be 1 to {APART // ROUNDS - 1}, since problems are generated"
            raise TaskError(f"task.{name}_size={'null' if size is None else size}: {right}")
    if task.train_set_seed >= MOST_SETS:
        raise TaskError(f"task.train_set_seed={task.train_set_seed}: must be below {MOST_SETS}")
    states = np.random.get_state(), random.getstate()  # noqa: NPY002  a few tasks draw from them
    found: dict[str, list[Example]] = {name: [] for name in sizes}
    try:
        every = _examples(task, sizes)
        for name, example in progress(every, "generating problems", sum(sizes.values())):
            found[name].append(example)
    finally:
        np.random.set_state(states[0])  # noqa: NPY002
        random.setstate(states[1])
    return Splits(**found)


def _examples(task: TaskConfig, sizes: Mapping[str, int]) -> Iterator[tuple[str, Example]]:
    """Yields splits and their examples with new questions; in evaluation splits each question once."""
    named = [*task_columns(task), task.references, task.messages]
    columns = [name for name in named if name is not None]
    taken: set[str] = set()
    for split, (name, size) in enumerate(sizes.items()):
        base = APART * (split + (task.train_set_seed if name == "train" else 0))
        earlier, made = frozenset(taken), 0
        for number, item in _items(task, base, size):
            question = str(item["question"])
            if question not in (earlier if name == "train" else taken):
                taken.add(question)
                yield name, _example(task, columns, number, item)
                made += 1
                if made == size:
                    break
        else:
            raise TaskError(
                f"task.{name}_size={size}: {ROUNDS * size} tries found {made} new questions of {task.name}; give less,"
                " or task.options with more different problems"
            )


def _items(task: TaskConfig, base: int, size: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields seeds and their items; a task may make no more items than its size."""
    for first in range(base, base + ROUNDS * size, size):
        random.seed(first)
        np.random.seed(first)  # noqa: NPY002
        made = dataset(**task.generated_by(), seed=first, size=size)
        for i in range(size):
            yield first + i, made[i]


def _example(
    task: TaskConfig, columns: Sequence[str], number: int, item: Mapping[str, Any]
) -> Example:
    """Returns an item as an example, with question, answer, metadata and the parts of the metadata as columns."""
    question, answer = str(item["question"]), item["answer"]
    own = {"question": question, "answer": answer, "metadata": item["metadata"]}
    known: dict[str, Any] = {**item["metadata"], **own}
    known["answer"] = "" if answer is None else str(answer)
    known[MESSAGES] = [{"role": "user", "content": question}]
    for name in columns:
        if name not in known:
            there = ", ".join(sorted(known))
            raise TaskError(f"task.prompt: items of {task.name} have no {name!r}, only {there}")
    fields = {name: known[name] for name in dict.fromkeys((*OWN[:2], *columns))}
    return Example(fields, 0, number, own)
