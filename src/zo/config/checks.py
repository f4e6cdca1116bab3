"""What is wrong with a run's settings: every value out of range, and those that do not fit each other."""

import math
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from zo.config.settings import RunConfig
from zo.lm.adapters.config import PeftAdapter
from zo.lm.baselines import BASELINES
from zo.optim import SHARDABLE
from zo.tasks.objective import FITS, OF_TEXT
from zo.weights.constraints import RESTORE_POLICIES, conflicts

BUDGETS = ("steps", "forward_passes")

WANDB_MODES = ("auto", "online", "offline", "disabled")

LEAST = {"seed": 0, "steps": 0, "eval_growth": 1.01}
LEAST |= dict.fromkeys(("batch_size", "eval_every", "patience", "eval_tokens", "threads"), 1)

MOST = {"seed": 2**63 - 1, "steps": 2**31 - 1, "threads": 1024}
"""A seed has to fit into 64 bits, a step's number into 32; more threads than cores only wait for each other."""

MOST_OF_A_METHOD = {**dict.fromkeys(("k", "m", "rank"), 1024), "n": 65536}
"""A step makes a forward pass for each direction, and keeps a matrix of k × k."""


class Problem(NamedTuple):
    """A configured value that cannot be run.

    Attributes:
        key: Dotted key, as typed on the command line.
        value: What it is; `...` if the problem is not one of a value.
        right: What would be right.
    """

    key: str
    value: Any
    right: str

    def __str__(self) -> str:
        shown = self.key if self.value is ... else f"{self.key}={self.value}"
        return f"{shown}: {self.right}"


class ConfigError(ValueError):
    """A configuration with problems; its text has one line for each."""

    def __init__(self, problems: list[Problem]):
        super().__init__(problems)  # supports pickling
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(p) for p in self.problems)


def problems(run: RunConfig) -> list[Problem]:
    """Returns everything that is wrong with a run but its learning rate."""
    return [*_unknown_problems(run), *_problems(run), *_budget_problems(run)]


def _problems(run: RunConfig) -> Iterator[Problem]:
    """Yields every value that is out of range or does not fit another one."""
    for group in ("model", "task", "optimizer", "precision", "adapter", "objective", "distributed"):
        node = getattr(run, group)
        refused = set()
        for key, right in node.problems():
            yield Problem(f"{group}.{key}", _value(node, key), right)
            refused.add(key)
        for key, value in vars(node).items():
            if isinstance(value, float) and not math.isfinite(value) and key not in refused:
                yield Problem(f"{group}.{key}", value, "must be a finite number")
    if run.model.kind == "masked" and run.task.prompt and run.task.masked_prompt is None:
        right = f"must be given: {run.model.name} is a masked model, and task {run.task.name} has no prompt for one"
        yield Problem("task.masked_prompt", None, right)
    if run.model.kind == "masked" and run.task.objective == "lm":
        yield Problem("task.objective", "lm", "must be classification for a masked model")
    if run.model.kind == "masked" and "masked" not in run.adapter.kinds:
        right = f"is for decoders, and {run.model.name} is a {run.model.kind} model; take lora, ia3, layers or bias"
        yield Problem("adapter", run.adapter.name, right)
    if run.optimizer.name == "icl" and run.model.kind == "masked":
        yield Problem(
            "optimizer", "icl", f"is for decoders, and {run.model.name} is a masked model"
        )
    if run.optimizer.name == "linear_probe" and any("{" in c for c in run.task.candidates or ()):
        right = f"is for classes, and the candidates of {run.task.name} are each example's own"
        yield Problem("optimizer", "linear_probe", right)
    if run.adapter.name == "scales" and run.model.quantization is None:
        right = "must be int8, int4 or nf4 with adapter=scales, which trains the scales of quantised weights"
        yield Problem("model.quantization", None, right)
    if run.precision.restore in RESTORE_POLICIES:
        needs = run.optimizer.restore_needs()
        how = run.precision
        half, philox = how.dtype != "float32", how.noise == "philox"
        for key, right in conflicts(how.restore, how.rounding, half=half, philox=philox, **needs):
            group = "optimizer" if key == "weight_decay" else "precision"
            yield Problem(f"{group}.{key}", getattr(getattr(run, group), key), right)
    if run.precision.rounding in ("stochastic", "compensated") and not run.optimizer.replays:
        right = f"must be nearest: the weights of {run.optimizer.name} are written by torch's own optimizer"
        yield Problem("precision.rounding", run.precision.rounding, right)
    yield from _shard_problems(run)
    yield from _tensor_problems(run)
    yield from _offload_problems(run)
    every = run.checkpoint.full_every
    if every is not None and every < 1:
        yield Problem("checkpoint.full_every", every, "must be at least 1, or null")
    yield from _objective_problems(run)
    yield from _number_problems(run)
    if run.task.train_size is not None and run.batch_size > run.task.train_size:
        yield Problem(
            "batch_size", run.batch_size, f"must be at most task.train_size={run.task.train_size}"
        )
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", run.device):
        yield Problem("device", run.device, "must be auto, cpu, cuda or cuda:N")
    if not run.model.path.strip():
        yield Problem("model.path", run.model.path, "must be a hub id or a directory")
    if not run.out.strip():
        yield Problem("out", run.out, "must name a directory, as out=out")
    if run.precision.graphs and run.device == "cpu":
        yield Problem("precision.graphs", True, "must be false with device=cpu: only a GPU records")
    if run.tracking.mode not in WANDB_MODES:
        yield Problem(
            "tracking.mode", run.tracking.mode, f"must be one of {', '.join(WANDB_MODES)}"
        )


def _budget_problems(run: RunConfig) -> Iterator[Problem]:
    """Yields what is wrong with the budget: an unknown unit, or less of it than one step takes."""
    passes = run.optimizer.passes_per_step
    if run.budget not in BUDGETS:
        yield Problem("budget", run.budget, f"must be one of {', '.join(BUDGETS)}")
    elif run.budget == "forward_passes" and 0 < run.steps < passes:
        right = f"must be at least {passes}: a step of {run.optimizer.name} makes {passes} forward passes"
        yield Problem("steps", run.steps, right)


def _value(node: Any, key: str) -> Any:
    """Returns what a key leads to, whose later parts are those of a mapping: `lr_grid.bszo`."""
    name, *inside = key.split(".")
    value = getattr(node, name)
    for part in inside:
        value = value[part]
    return value


def _shard_problems(run: RunConfig) -> Iterator[Problem]:
    """Yields what is wrong with the number of parts of a mini-batch."""
    shards = run.distributed.shards
    if shards > 1 and not run.optimizer.replays:
        right = f"must be 1: {run.optimizer.name} makes one backward pass per step"
        yield Problem("distributed.shards", shards, right)
    elif shards > 1 and run.batch_size % shards:
        right = f"must divide batch_size={run.batch_size}, so that all parts are of one size"
        yield Problem("distributed.shards", shards, right)


def _tensor_problems(run: RunConfig) -> Iterator[Problem]:
    """Yields what tensor parallelism cannot do, or was not tried with."""
    if run.distributed.tensor == 1:
        return
    for key, value, allowed in (
        ("optimizer", run.optimizer.name, (*SHARDABLE, "zero_shot")),
        (
            "precision.restore",
            run.precision.restore,
            [n for n, of in RESTORE_POLICIES.items() if of.supports_sharding],
        ),
        ("precision.graphs", run.precision.graphs, (False,)),
        ("model.kind", run.model.kind, ("decoder",)),
        ("model.weights", run.model.weights, ("pretrained",)),
        ("model.quantization", run.model.quantization, (None,)),
        ("adapter", run.adapter.name, ("none",)),
        ("objective", run.objective.of(run.task), ("classification", "lm", "completion")),
        ("distributed.shards", run.distributed.shards, (1,)),
    ):
        if value not in allowed:
            names = " or ".join(str(of).lower() for of in allowed)
            yield Problem(key, value, f"must be {names} with distributed.tensor")


def _offload_problems(run: RunConfig) -> Iterator[Problem]:
    """Yields what does not go with weights that come to the device one module at a time."""
    if run.model.offload is None:
        return
    with_it = f"with model.offload={run.model.offload}"
    if run.distributed.tensor > 1:
        yield Problem("distributed.tensor", run.distributed.tensor, f"must be 1 {with_it}")
    if run.precision.graphs:
        yield Problem("precision.graphs", True, f"must be false {with_it}")
    if run.optimizer.name in BASELINES or run.steps == 0 or isinstance(run.adapter, PeftAdapter):
        return  # nothing of the model moves
    if run.precision.restore != "streamed":
        right = f"must be streamed {with_it}: the others displace all weights together"
        yield Problem("precision.restore", run.precision.restore, right)
    if run.precision.rounding == "compensated":
        right = f"must be nearest or stochastic {with_it}: compensated keeps 4 bytes per weight on the device"
        yield Problem("precision.rounding", "compensated", right)


def _objective_problems(run: RunConfig) -> Iterator[Problem]:
    """Yields what does not fit the objective."""
    name = run.objective.of(run.task)
    kinds = FITS.get(name, ())
    if kinds and run.task.kind not in kinds:
        right = f"must be another: task.kind={run.task.kind}, and it is for {' and '.join(kinds)}"
        yield Problem("objective", name, right)
    yield from _reward_problems(run, name)
    if name not in OF_TEXT and run.task.temperature > 0 and run.task.measure is None:
        yield Problem(
            "task.temperature",
            run.task.temperature,
            f"must be 0 with objective={name}, which draws no text",
        )
    if name not in OF_TEXT and getattr(run.optimizer, "baseline", "population") == "prompt":
        right = f"must be population with objective={name}, which has one loss for all examples"
        yield Problem("optimizer.baseline", "prompt", right)
    if name not in ("metric", *OF_TEXT):
        return
    if run.optimizer.name in ("sgd", "adam"):
        yield Problem(
            "optimizer", run.optimizer.name, f"must be another: objective={name} has no gradient"
        )
    if run.distributed.shards > 1:
        yield Problem(
            "distributed.shards", run.distributed.shards, f"must be 1 with objective={name}"
        )
    if run.precision.graphs:
        yield Problem("precision.graphs", True, f"must be false with objective={name}")
    if name in OF_TEXT and run.adapter.name in ("prefix", "prompt"):
        yield Problem("adapter", run.adapter.name, f"must be another with objective={name}")


def _reward_problems(run: RunConfig, name: str) -> Iterator[Problem]:
    """Yields what graders with a name need, and functions that are missing."""
    objective, task = run.objective, run.task
    if name != "reward":
        return
    rated_by = objective.rated_by(task)
    if not rated_by:
        yield Problem("objective.function", None, "must be given, as rules.py:score")
    if "reasoning_gym" in rated_by and not task.generated_by():
        right = "is for task=reasoning_gym, whose problems it generates"
        yield Problem("objective.function", "reasoning_gym", right)
    if "math_verify" in rated_by and task.references is None and task.kind == "prompts":
        right = "must name the column with the right answers, for objective.function=math_verify"
        yield Problem("task.references", None, right)


def _number_problems(run: RunConfig) -> Iterator[Problem]:
    """Yields every whole number that is too small or too large."""
    for key, most in MOST_OF_A_METHOD.items():
        value = getattr(run.optimizer, key, None)
        if value is not None and value > most:
            yield Problem(f"optimizer.{key}", value, f"must be at most {most}")
    for key in {**LEAST, **MOST}:
        value = getattr(run, key)
        if value is None:
            continue
        if not value >= (least := LEAST.get(key, value)):
            yield Problem(key, value, f"must be at least {least}")
        if value > (most := MOST.get(key, value)):
            yield Problem(key, value, f"must be at most {most}")


def _unknown_problems(run: RunConfig) -> Iterator[Problem]:
    """Yields the keys that `+key=value` added, which nothing reads."""
    for prefix, node in (("", run), *((f"{k}.", v) for k, v in vars(run).items())):
        if is_dataclass(node):
            known = {f.name for f in fields(node)}
            for key in vars(node).keys() - known:
                yield Problem(f"+{prefix}{key}", getattr(node, key), "no such key")
