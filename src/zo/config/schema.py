"""The typed configuration of a run: schemas for Hydra, and checks that report every error at once."""

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from zo.config.origin import follow_path, stored_dtype
from zo.config.precision import PrecisionConfig
from zo.distributed.config import DistributedConfig
from zo.lm.adapter_config import ADAPTERS
from zo.lm.config import ModelConfig
from zo.optim import OPTIMIZERS
from zo.tasks.config import TaskConfig
from zo.tasks.objective import FITS, OF_TEXT, ObjectiveConfig
from zo.weights.constraints import RESTORE_POLICIES, conflicts

WHOLE_STATE = ("mezo_adam", "hizoo")
"""Methods that move sharded tensors under torch's noise alone: their Philox passes take whole tensors."""

TENSOR_PARALLEL = (
    *("mezo", "bszo", "bszo_b", "fzoo", "adamezo", "zo_sign", "zo_momentum", "zo_conservative"),
    *(*WHOLE_STATE, "zero_shot"),
)
"""Methods that move sharded tensors."""

NOT_SCIENTIFIC = (
    *("lr_index", "eval_tokens", "out", "resume", "device", "threads"),
    *("checkpoint", "tracking"),
)
"""Top-level keys that decide where and how a run is made, but none of its numbers."""

LABEL = "label_field"
"""What `task.label` is called in the files of earlier runs, and in the identity of every run."""

BUDGETS = ("steps", "forward_passes")

WANDB_MODES = ("auto", "online", "offline", "disabled")

LEAST = dict.fromkeys(("batch_size", "eval_every", "patience", "eval_tokens", "threads"), 1)
LEAST |= {"seed": 0, "steps": 0}
MOST = {"seed": 2**63 - 1, "steps": 2**31 - 1, "threads": 1024}
"""A seed has to fit into 64 bits, a step's number into 32; more threads than cores only wait for each other."""

MOST_OF_A_METHOD = dict.fromkeys(("k", "m", "n", "rank"), 1024)
"""A step makes a forward pass for each direction, and keeps a matrix of k × k."""


@dataclass
class TrackingConfig:
    """Where W&B logs go. Not part of a run's identity.

    Attributes:
        mode: `auto` is online with a W&B key and offline without; or `online`, `offline`, `disabled`.
        project: W&B project.
        entity: W&B user or team; None is the key's default.
        group: W&B group; None is the sweep's name.
    """

    mode: str = "auto"
    project: str = "zo"
    entity: str | None = None
    group: str | None = None


@dataclass
class CheckpointConfig:
    """When whole weights are written, beside the trajectory. Not part of a run's identity.

    Attributes:
        full_every: Steps between checkpoints, of which the newest two stay until the run has ended; None writes none,
            and an interrupted run replays its trajectory from step 0.
        keep_best: The best step's weights stay, too, also after the end: `zo.run.export` need not replay then.
    """

    full_every: int | None = 1000
    keep_best: bool = False


@dataclass
class RunConfig:
    """One run, complete.

    Attributes:
        model: See `zo.lm.config.ModelConfig`.
        task: See `zo.tasks.config.TaskConfig`.
        optimizer: One of the registered methods' configurations.
        precision: See `zo.config.precision.PrecisionConfig`.
        adapter: One of the settings in `zo.lm.adapter_config`: what is trained of the model.
        seed: Of the directions and the order of mini-batches, ≥ 0.
        objective: See `zo.tasks.objective.ObjectiveConfig`.
        lr: Learning rate > 0; None takes the adapter's or the model's grid, by `lr_index`.
        lr_index: Position in the grid's list for `optimizer.name`, from 0; None takes the middle.
        steps: Optimizer steps at most; 0 only evaluates.
        batch_size: Training examples per step.
        eval_every: Steps between evaluations.
        budget: What `steps` and `eval_every` count: `steps`, or `forward_passes`, of which a method's step makes
            several, a backward pass counting as two. A checked run has them in steps.
        patience: Stop after this many evaluations without a better validation accuracy; None never stops early.
        eval_tokens: Tokens, padding included, of one evaluation batch. Not part of a run's identity.
        out: Directory of all runs. Not part of a run's identity.
        resume: False starts a run anew even if it is finished. Not part of a run's identity.
        device: auto, cpu, cuda or cuda:N. Not part of a run's identity.
        threads: CPU threads of torch; None leaves torch's choice. Not part of a run's identity.
        checkpoint: When whole weights are written. Not part of a run's identity.
        tracking: W&B. Not part of a run's identity.
        distributed: See `zo.distributed.config.DistributedConfig`. `shards` and `tensor` are part of a run's identity.
    """

    model: ModelConfig = MISSING
    task: TaskConfig = MISSING
    optimizer: Any = MISSING
    precision: PrecisionConfig = MISSING
    adapter: Any = MISSING
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    seed: int = 0
    lr: float | None = None
    lr_index: int | None = None
    steps: int = 20_000
    batch_size: int = 16
    eval_every: int = 500
    budget: str = "steps"
    patience: int | None = 8
    eval_tokens: int = 16_384
    out: str = "out"
    resume: bool = True
    device: str = "auto"
    threads: int | None = None
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)


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
        super().__init__(problems)  # what another process, to which it is sent, makes it from again
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(p) for p in self.problems)


def register() -> None:
    """Registers the schemas that the YAML files in conf/ build on."""
    store = ConfigStore.instance()
    store.store(group="schema", name="run", node=RunConfig)
    store.store(group="schema/model", name="model", node=ModelConfig)
    store.store(group="schema/task", name="task", node=TaskConfig)
    store.store(group="schema/precision", name="precision", node=PrecisionConfig)
    for name, method in OPTIMIZERS.items():
        store.store(group="schema/optimizer", name=name, node=method.config)
    store.store(group="schema/objective", name="objective", node=ObjectiveConfig)
    for name, adapter in ADAPTERS.items():
        store.store(group="schema/adapter", name=name, node=adapter)


def to_run_config(cfg: DictConfig) -> RunConfig:
    """Turns a composed configuration into a `RunConfig` with its learning rate resolved.

    Raises:
        ConfigError: Naming every key that is missing, of the wrong type or out of range.
    """
    try:
        run = OmegaConf.to_object(cfg)
    except MissingMandatoryValue:
        missing = sorted(OmegaConf.missing_keys(cfg))
        raise ConfigError([Problem(key, "???", "must be given") for key in missing]) from None
    except OmegaConfBaseException as error:
        text = str(error).splitlines()[0]
        raise ConfigError([Problem(str(error.full_key), "?", text)]) from error
    assert isinstance(run, RunConfig)
    return checked(run)


def checked(run: RunConfig) -> RunConfig:
    """Returns a run with its learning rate resolved.

    Raises:
        ConfigError: Naming every key that is out of range or does not fit another one.
    """
    follow_path(run.model, run.task, run.precision)
    _take_eps(run)
    problems = [*_unknown_problems(run), *_problems(run), *_budget_problems(run)]
    _count_in_steps(run)
    if OPTIMIZERS[run.optimizer.name].config.trains and run.steps != 0:
        if not any(problem.key.startswith("model.lr_grid") for problem in problems):
            problems += _resolve_lr(run)
    else:
        run.steps, run.lr = 0, 0.0
    if problems:
        raise ConfigError(problems)
    return run


def _budget_problems(run: RunConfig) -> Iterator[Problem]:
    """Yields what is wrong with the budget: an unknown unit, or less of it than one step takes."""
    passes = run.optimizer.passes_per_step
    if run.budget not in BUDGETS:
        yield Problem("budget", run.budget, f"must be one of {', '.join(BUDGETS)}")
    elif run.budget == "forward_passes" and 0 < run.steps < passes:
        right = f"must be at least {passes}: a step of {run.optimizer.name} makes {passes} forward passes"
        yield Problem("steps", run.steps, right)


def _count_in_steps(run: RunConfig) -> None:
    """Turns `steps` and `eval_every` into steps where they count forward passes."""
    passes = run.optimizer.passes_per_step
    if run.budget == "forward_passes" and passes > 0:
        run.steps //= passes
        run.eval_every = max(run.eval_every // passes, 1)
    run.budget = "steps"


def scientific(run: RunConfig) -> dict[str, Any]:
    """Returns a run's settings as plain nested data, without those of output, device and logging.

    W&B shows them. `zo.config.identity.identity` says which of them make another run.
    """
    plain = asdict(run)
    del plain["budget"]
    for key in NOT_SCIENTIFIC:
        del plain[key]
    divided = plain.pop("distributed")
    parts = {key: divided[key] for key in ("shards", "tensor") if divided[key] > 1}
    if parts and run.steps > 0:
        plain["distributed"] = parts
    for group, key in (
        ("model", "lr_grid"),
        ("model", "lr_grid_of"),
        ("model", "paper"),
        ("model", "install"),
        ("task", "install"),
    ):
        del plain[group][key]
    if run.model.weights == "pretrained":
        del plain["model"]["architecture"]
    if run.objective == ObjectiveConfig():
        del plain["objective"]
    if run.adapter.name == "none":
        del plain["adapter"]
    else:
        del plain["adapter"]["eps"], plain["adapter"]["lr_grid"]
    if run.steps == 0:
        for key in ("lr", "batch_size", "eval_every", "patience"):
            del plain[key]
    return plain


def describe(run: RunConfig) -> str:
    """Returns the run's choices in one line, for people."""
    lr = "" if run.steps == 0 else f" lr={run.lr:g}"
    adapter = () if run.adapter.name == "none" else (run.adapter.name,)
    parts = (run.optimizer.name, *adapter, run.model.name, run.task.name, run.precision.name)
    return f"{' '.join(parts)}{lr} seed={run.seed}"


def notes(run: RunConfig) -> list[str]:
    """Returns what a person should know of the choices, one sentence each."""
    found = run.optimizer.notes()
    if run.adapter.eps is not None and getattr(run.optimizer, "eps", None) == run.adapter.eps:
        found.append(
            f"optimizer.eps={run.adapter.eps:g} is that of adapter={run.adapter.name}; "
            "adapter.eps=null leaves the method's own"
        )
    stored, held = stored_dtype(run.model), run.precision.dtype
    if stored is not None and stored != held:
        found.append(
            f"precision.dtype={held}: the weights of {run.model.name} are stored in {stored}; "
            f"precision.dtype={stored} keeps that"
        )
    elif (
        stored in ("bfloat16", "float16") and run.steps > 0 and run.precision.rounding == "nearest"
    ):
        found.append(
            f"precision={run.precision.name}, as the weights of {run.model.name} are stored: small updates are rounded"
            " away; precision=fp32, or precision.noise=philox precision.rounding=stochastic, keeps them"
        )
    grid = run.model.lr_grid.get(run.optimizer.name, ())
    if run.model.lr_grid_of and run.lr in grid and not run.adapter.own_rates:
        rates = ", ".join(f"{lr:g}" for lr in grid)
        found.append(
            f"lr={run.lr:g} is one of the learning rates of {run.model.lr_grid_of} ({rates}); "
            f"none are known for {run.model.name}, so try several with -m lr=..."
        )
    return found


def to_yaml(run: RunConfig) -> str:
    """Returns the resolved configuration as YAML."""
    return yaml.safe_dump(asdict(run), sort_keys=False, allow_unicode=True)


def from_yaml(text: str) -> RunConfig:
    """Returns the configuration that `to_yaml` wrote.

    Raises:
        ConfigError: If something else wrote it; every key that is missing, unknown or out of range is named.
    """
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError([Problem("config.yaml", "?", str(error).splitlines()[0])]) from None
    return from_plain(given)


def from_plain(given: Any) -> RunConfig:
    """Returns the configuration that plain nested data stand for, what `scientific` leaves out at its default.

    Raises:
        ConfigError: If it is none; every key that is missing, unknown or out of range is named.
    """
    sections = given if isinstance(given, dict) else {}
    for group in ("task", "optimizer"):
        if not isinstance(sections.get(group), dict):
            raise ConfigError([Problem(group, sections.get(group), "must be the group's settings")])
    try:
        typed = OmegaConf.structured(RunConfig)
        if LABEL in given["task"]:
            given["task"]["label"] = given["task"].pop(LABEL)
        typed.optimizer = OPTIMIZERS[given["optimizer"]["name"]].config
        typed.adapter = ADAPTERS[given.get("adapter", {}).get("name", "none")]
        return to_run_config(OmegaConf.merge(typed, given))  # type: ignore[arg-type]
    except OmegaConfBaseException as error:
        raise ConfigError([Problem(str(error.full_key), "?", str(error).splitlines()[0])]) from None
    except (TypeError, KeyError) as error:
        raise ConfigError(
            [Problem("optimizer.name", error, "must name a method, and adapter.name an adapter")]
        ) from None


def _take_eps(run: RunConfig) -> None:
    """Gives a method whose ε is at its default the adapter's ε."""
    default = getattr(type(run.optimizer), "eps", None)
    if run.adapter.eps is not None and default is not None and run.optimizer.eps == default:
        run.optimizer.eps = float(run.adapter.eps)


def _resolve_lr(run: RunConfig) -> list[Problem]:
    """Sets `run.lr` from the adapter's or the model's grid unless it was given; returns what is wrong."""
    if run.lr is not None:
        ok = math.isfinite(run.lr) and run.lr > 0
        return [] if ok else [Problem("lr", run.lr, "must be finite and greater than 0")]
    own = run.adapter if run.adapter.own_rates else run.model
    group = "adapter" if run.adapter.own_rates else "model"
    grid = own.lr_grid.get(run.optimizer.name)
    if not grid:
        where = f"conf/{group}/{own.name}.yaml has no lr_grid for {run.optimizer.name}"
        return [Problem("lr", None, f"must be given, since {where}")]
    index = len(grid) // 2 if run.lr_index is None else run.lr_index
    if not 0 <= index < len(grid):
        right = f"must be 0 to {len(grid) - 1}: {run.optimizer.name} on {own.name} has {len(grid)} learning rates"
        return [Problem("lr_index", index, right)]
    run.lr = float(grid[index])
    return []


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
        for key, right in conflicts(run.precision.restore, **needs):
            group = "optimizer" if key == "weight_decay" else "precision"
            yield Problem(f"{group}.{key}", getattr(getattr(run, group), key), right)
    if (
        run.precision.rounding in ("stochastic", "compensated")
        and not OPTIMIZERS[run.optimizer.name].config.replays
    ):
        right = f"must be nearest: the weights of {run.optimizer.name} are written by torch's own optimizer"
        yield Problem("precision.rounding", run.precision.rounding, right)
    yield from _shard_problems(run)
    yield from _tensor_problems(run)
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
    if shards > 1 and not OPTIMIZERS[run.optimizer.name].config.replays:
        right = f"must be 1: {run.optimizer.name} makes one backward pass per step"
        yield Problem("distributed.shards", shards, right)
    elif shards > 1 and run.batch_size % shards:
        right = f"must divide batch_size={run.batch_size}, so that all parts are of one size"
        yield Problem("distributed.shards", shards, right)


def _tensor_problems(run: RunConfig) -> Iterator[Problem]:
    """Yields what tensor parallelism cannot do, or was not tried with."""
    if run.distributed.tensor == 1:
        return
    if run.optimizer.name in WHOLE_STATE and run.precision.noise != "torch":
        right = f"must be torch with distributed.tensor and optimizer={run.optimizer.name}"
        yield Problem("precision.noise", run.precision.noise, right)
    for key, value, allowed in (
        ("optimizer", run.optimizer.name, TENSOR_PARALLEL),
        ("precision.restore", run.precision.restore, ("merged", "subtract", "snapshot")),
        ("precision.graphs", run.precision.graphs, (False,)),
        ("model.kind", run.model.kind, ("decoder",)),
        ("model.weights", run.model.weights, ("pretrained",)),
        ("model.quantization", run.model.quantization, (None,)),
        ("adapter", run.adapter.name, ("none",)),
        ("objective", run.objective.of(run.task), ("classification", "lm", "completion")),
        ("checkpoint.keep_best", run.checkpoint.keep_best, (False,)),
        ("distributed.shards", run.distributed.shards, (1,)),
    ):
        if value not in allowed:
            names = " or ".join(str(of).lower() for of in allowed)
            yield Problem(key, value, f"must be {names} with distributed.tensor")


def _objective_problems(run: RunConfig) -> Iterator[Problem]:
    """Yields what does not fit the objective."""
    name = run.objective.of(run.task)
    kinds = FITS.get(name, ())
    if kinds and run.task.kind not in kinds:
        right = f"must be another: task.kind={run.task.kind}, and it is for {' and '.join(kinds)}"
        yield Problem("objective", name, right)
    if name == "reward" and run.objective.function is None:
        yield Problem("objective.function", None, "must be given, as rules.py:score")
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
    if name in OF_TEXT and run.precision.restore == "factors":
        yield Problem("precision.restore", "factors", f"must be another with objective={name}")
    if name in OF_TEXT and run.adapter.name in ("prefix", "prompt"):
        yield Problem("adapter", run.adapter.name, f"must be another with objective={name}")


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
        if value < (least := LEAST.get(key, value)):
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
