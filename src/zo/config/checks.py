"""What is wrong with a run's settings: every value out of range, and those that do not fit each other."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from zo.config.settings import RunConfig
from zo.lm.adapters.config import PeftAdapter
from zo.lm.baselines import BASELINES
from zo.optim import SHARDABLE
from zo.optim.config import Settings
from zo.tasks.objective import FITS, OF_TEXT
from zo.weights.constraints import RESTORE_POLICIES, conflicts

MOST_OF_A_METHOD = {**dict.fromkeys(("k", "m", "rank"), 1024), "n": 65536}
"""A step makes a forward pass for each direction, and keeps a matrix of k × k."""


class Problem(NamedTuple):
    """A configured value that cannot be run."""

    key: str  # Dotted key, as typed on the command line
    value: Any  # What it is; `...` if the problem is not one of a value
    right: str  # What would be right

    def __str__(self) -> str:
        if self.value is ...:
            return f"{self.key}: {self.right}"
        plain = self.value is None or isinstance(self.value, bool)
        return f"{self.key}={json.dumps(self.value) if plain else self.value}: {self.right}"


class ConfigError(ValueError):
    """A configuration with problems; its text has one line for each."""

    def __init__(self, problems: list[Problem]):
        super().__init__(problems)  # supports pickling
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(p) for p in self.problems)


Rule = tuple[Any, ...]
"""Whether it is broken, the key, what would be right, and the key's value where that is not the run's."""


def problems(run: RunConfig) -> list[Problem]:
    """Returns everything that is wrong with a run but its learning rate."""
    return [*_unknown_problems(run), *_group_problems(run), *_problems(run)]


def value_of(run: RunConfig, key: str) -> Any:
    """Returns a run's value of a key, None where it has none; a group's is the name of its choice."""
    value: Any = run
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    is_choice = is_dataclass(value)
    return value.name if is_choice else value


def _group_problems(run: RunConfig) -> Iterator[Problem]:
    """Yields what a run and its groups say of their own values, and numbers that are none."""
    groups = {f"{key}.": node for key, node in vars(run).items() if isinstance(node, Settings)}
    for group, node in {"": run, **groups}.items():
        found = node.problems()
        floats = {k: v for k, v in vars(node).items() if isinstance(v, float) and node is not run}
        infinite = [k for k, v in floats.items() if not math.isfinite(v)]
        found += [(k, "must be a finite number") for k in infinite if k not in dict(found)]
        for key, right in found:
            yield Problem(f"{group}{key}", value_of(run, f"{group}{key}"), right)


def _problems(run: RunConfig) -> Iterator[Problem]:
    """Yields every value that is out of range or does not fit another one."""
    rules = (_of_choices, _of_distribution, _of_offload, _of_objective, _of_numbers)
    for broken, key, right, *value in (rule for of in rules for rule in of(run)):
        if broken:
            yield Problem(key, value[0] if value else value_of(run, key), right)


def _of_choices(run: RunConfig) -> Iterator[Rule]:
    """Yields rules of the choices of model, method, adapter and precision, and of what is no number."""
    model, task, method, how = run.model, run.task, run.optimizer, run.precision
    masked = model.kind == "masked"
    own = any("{" in candidate for candidate in task.candidates or ())
    rounds = how.rounding in ("stochastic", "compensated")
    yield from [
        (masked and task.prompt and task.masked_prompt is None, "task.masked_prompt",
         f"must be given: {model.name} is a masked model, and task {task.name} has no prompt for one"),
        (task.select_by in ("accuracy", "macro_f1") and task.kind != "classification", "task.select_by",
         f"must be loss or null: task {task.name} has no classes"),
        (task.select_by == "macro_f1" and (own or task.choices), "task.select_by",
         f"must be accuracy, loss or null: the candidates of {task.name} are each example's own"),
        (masked and task.objective == "lm", "task.objective", "must be classification for a masked model"),
        (masked and "masked" not in run.adapter.kinds, "adapter",
         f"is for decoders, and {model.name} is a {model.kind} model; take lora, ia3, layers or bias"),
        (model.kind != "decoder" and method.name == "icl", "optimizer",
         f"is for decoders, and {model.name} is a {model.kind} model"),
        (model.kind == "encoder-decoder" and method.name == "linear_probe", "optimizer",
         f"is for decoders and masked models, and {model.name} is an encoder-decoder"),
        (own and method.name == "linear_probe", "optimizer",
         f"is for classes, and the candidates of {task.name} are each example's own"),
        (run.adapter.name == "scales" and model.quantization is None, "model.quantization",
         "must be int8, int4 or nf4 with adapter=scales, which trains the scales of quantised weights"),
        (rounds and not method.replays, "precision.rounding",
         f"must be nearest: the weights of {method.name} are written by torch's own optimizer"),
        (how.graphs and run.device == "cpu", "precision.graphs",
         "must be false with device=cpu: only a GPU records"),
    ]  # fmt: skip
    if how.restore in RESTORE_POLICIES:
        trained = run.adapter.trained_dtype(how.dtype)
        half, philox = trained != "float32", how.noise == "philox"
        given = {"half": half, "philox": philox, "graphs": how.graphs, **method.restore_needs()}
        for key, right in conflicts(how.restore, how.rounding, **given):
            if key == "rounding" and trained != how.dtype:
                right += ", as of this adapter; adapter.dtype=model gives it the weights'"
            yield True, f"{'optimizer' if key == 'weight_decay' else 'precision'}.{key}", right


def _of_distribution(run: RunConfig) -> Iterator[Rule]:
    """Yields rules of the parts of a mini-batch, and of what tensor parallelism cannot do or was not tried with."""
    shards, name = run.distributed.shards, run.optimizer.name
    divides = run.batch_size % shards if run.optimizer.replays and shards > 1 else 0
    right = f"must be 1: {name} makes one backward pass per step"
    yield shards > 1 and not run.optimizer.replays, "distributed.shards", right
    right = f"must divide batch_size={run.batch_size}, so that all parts are of one size"
    yield divides, "distributed.shards", right
    divisible = [name for name, of in RESTORE_POLICIES.items() if of.supports_sharding]
    for key, value, allowed in (
        ("optimizer", name, (*SHARDABLE, "zero_shot")),
        ("precision.restore", run.precision.restore, divisible),
        ("precision.graphs", run.precision.graphs, (False,)),
        ("model.kind", run.model.kind, ("decoder",)),
        ("model.weights", run.model.weights, ("pretrained",)),
        ("model.quantization", run.model.quantization, (None,)),
        ("adapter", run.adapter.name, ("none",)),
        ("objective", run.objective.of(run.task), ("classification", "lm", "completion")),
        ("distributed.shards", shards, (1,)),
    ):
        names = " or ".join(str(of).lower() for of in allowed)
        broken = run.distributed.tensor > 1 and value not in allowed
        yield broken, key, f"must be {names} with distributed.tensor", value


def _of_offload(run: RunConfig) -> Iterator[Rule]:
    """Yields rules of weights that come to the device one module at a time."""
    if run.model.offload is None:
        return
    given, how = f"with model.offload={run.model.offload}", run.precision
    still = run.optimizer.name in BASELINES or run.steps == 0
    still |= isinstance(run.adapter, PeftAdapter)
    yield from [
        (run.distributed.tensor > 1, "distributed.tensor", f"must be 1 {given}"),
        (how.graphs, "precision.graphs", f"must be false {given}"),
        (not still and how.restore != "streamed", "precision.restore",
         f"must be streamed {given}: the others displace all weights together"),
        (not still and how.rounding == "compensated", "precision.rounding",
         f"must be nearest or stochastic {given}: compensated keeps 4 bytes per weight on the device"),
    ]  # fmt: skip


def _of_objective(run: RunConfig) -> Iterator[Rule]:
    """Yields rules of the objective, and of what graders with a name need."""
    task, method = run.task, run.optimizer
    name = run.objective.of(task)
    kinds, text = FITS.get(name, ()), name in OF_TEXT
    measured, rewarded = text or name == "metric", name == "reward"
    rated_by = run.objective.rated_by(task) if rewarded else ()
    given = f"with objective={name}"
    yield from [
        (kinds and task.kind not in kinds, "objective",
         f"must be another: task.kind={task.kind}, and it is for {' and '.join(kinds)}", name),
        (rewarded and task.own_measure, "task.measure",
         "must be null with objective=reward, whose evaluations report the reward"),
        (task.kind == "preference" and method.name in ("icl", "linear_probe"), "optimizer",
         "must be another: preferences have no classes"),
        (rewarded and not rated_by, "objective.function", "must be given, as rules.py:score", ...),
        ("reasoning_gym" in rated_by and not task.generated_by(), "objective.function",
         "is for task=reasoning_gym, whose problems it generates", "reasoning_gym"),
        ("math_verify" in rated_by and task.references is None and task.kind == "prompts", "task.references",
         "must name the column with the right answers, for objective.function=math_verify"),
        (not text and task.temperature > 0 and task.measure is None, "task.temperature",
         f"must be 0 {given}, which draws no text"),
        (not text and getattr(method, "baseline", "") == "prompt", "optimizer.baseline",
         f"must be population {given}, which has one loss for all examples"),
        (measured and method.name in ("sgd", "adam"), "optimizer",
         f"must be another: objective={name} has no gradient"),
        (measured and run.distributed.shards > 1, "distributed.shards", f"must be 1 {given}"),
        (measured and run.precision.graphs, "precision.graphs", f"must be false {given}"),
        (text and run.adapter.name in ("prefix", "prompt"), "adapter", f"must be another {given}"),
    ]  # fmt: skip


def _of_numbers(run: RunConfig) -> Iterator[Rule]:
    """Yields rules of whole numbers that are too small or too large, and of the budget."""
    for key, most in MOST_OF_A_METHOD.items():
        value = getattr(run.optimizer, key, None) or 0
        yield value > most, f"optimizer.{key}", f"must be at most {most}"
    size = run.task.train_size
    passes = run.optimizer.passes_per_step
    too_few = run.budget == "forward_passes" and 0 < run.steps < passes
    yield from [
        (size is not None and run.batch_size > size, "batch_size", f"must be at most task.train_size={size}"),
        (too_few, "steps", f"must be at least {passes}: a step of {run.optimizer.name} makes {passes} forward passes"),
    ]  # fmt: skip


def _unknown_problems(run: RunConfig) -> Iterator[Problem]:
    """Yields the keys that `+key=value` added, which nothing reads."""
    for prefix, node in (("", run), *((f"{k}.", v) for k, v in vars(run).items())):
        if is_dataclass(node):
            known = {f.name for f in fields(node)}
            for key in vars(node).keys() - known:
                yield Problem(f"+{prefix}{key}", getattr(node, key), "no such key")
