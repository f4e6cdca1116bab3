"""A run's configuration from Hydra and from YAML, checked; and what is said of it."""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from zo.config import method_code
from zo.config.arms import SweeperConfig
from zo.config.checks import ConfigError, Problem, problems
from zo.config.precision import AUTO, PrecisionConfig
from zo.config.presets import CONFIG_DIR, follow_path, read_also, stored_dtype
from zo.config.settings import RunConfig
from zo.lm.adapters.config import ADAPTERS
from zo.lm.baselines import BASELINES
from zo.lm.config import ModelConfig
from zo.optim import OPTIMIZERS
from zo.tasks.config import TaskConfig
from zo.tasks.objective import NAMES as OBJECTIVES
from zo.tasks.objective import ObjectiveConfig

OUTSIDE_IDENTITY = (
    *("lr_index", "eval_tokens", "out", "resume", "device", "threads"),
    *("checkpoint", "tracking"),
)
"""Top-level keys that decide where and how a run is made, but none of its numbers."""

LABEL = "label_field"
"""What `task.label` is called in the files of earlier runs, and in the identity of every run."""


def register() -> None:
    """Registers the schemas that the YAML files in conf/ build on."""
    Plugins.instance()  # first: one of Hydra's own schemas is replaced
    store = ConfigStore.instance()
    store.store(group="hydra/sweeper", name="basic", node=SweeperConfig)
    store.store(group="schema", name="run", node=RunConfig)
    store.store(group="schema/model", name="model", node=ModelConfig)
    store.store(group="schema/task", name="task", node=TaskConfig)
    store.store(group="schema/precision", name="precision", node=PrecisionConfig)
    store.store(group="schema/objective", name="objective", node=ObjectiveConfig)
    for group, kinds in option_schemas().items():
        for name, node in kinds.items():
            store.store(group=f"schema/{group}", name=name, node=node)
            if not (CONFIG_DIR / group / f"{name}.yaml").is_file():
                store.store(group=group, name=name, node=node)


def option_schemas() -> dict[str, dict[str, Any]]:
    """Returns the settings behind each option of `optimizer`, `adapter` and `objective`, which need no file."""
    objectives = {name: ObjectiveConfig(name) for name in OBJECTIVES}
    methods = {name: method.config for name, method in OPTIMIZERS.items()}
    return {"optimizer": methods | BASELINES, "adapter": {**ADAPTERS}, "objective": objectives}


def to_run_config(cfg: DictConfig, given: Collection[str] = ()) -> RunConfig:
    """Turns a composed configuration into a checked `RunConfig`. Raises ConfigError naming every key that is wrong.

    Args:
        cfg: The configuration.
        given: Keys that the user has set, some perhaps to their defaults.
    """
    try:
        run = OmegaConf.to_object(cfg)
    except MissingMandatoryValue:
        missing = sorted(OmegaConf.missing_keys(cfg))
        raise ConfigError([Problem(key, ..., "must be given") for key in missing]) from None
    except OmegaConfBaseException as error:
        text = str(error).splitlines()[0]
        raise ConfigError([Problem(str(error.full_key), "?", text)]) from error
    assert isinstance(run, RunConfig)
    if unnamed := [*_name_problems(run)]:
        raise ConfigError(unnamed)
    follow_path(run.model, run.task, run.precision)
    if run.precision.restore == AUTO:
        run.precision.restore, _ = _automatic_restore(run)
    if "optimizer.eps" in given:  # which holds, also at the method's default
        run.adapter.eps = None
    _take_eps(run)
    if getattr(run.optimizer, "square", False) is None:
        run.optimizer.square = run.adapter.name in ("lora", "prefix", "prompt")  # type: ignore[attr-defined]
    also = [Problem(f"task.{key}", ..., right) for key, right in read_also(run.task)]
    own = run.objective.of(run.task)
    unread = [
        Problem(key, value, f"is read by {of} alone, and this run's is {own}")
        for key, value, of in run.objective.unread(run.task)
        if key in given  # a stored run may have it
    ]
    found = [*also, *unread, *problems(run)]
    _count_in_steps(run)
    if run.optimizer.name not in BASELINES and run.steps != 0:
        if not any(problem.key.startswith("model.lr_grid") for problem in found):
            found += _resolve_lr(run)
    else:
        run.steps, run.lr = 0, 0.0
    if found:
        raise ConfigError(found)
    return run


def _automatic_restore(run: RunConfig) -> tuple[str, str]:
    """Returns the restore policy that `precision.restore=auto` stands for, and why."""
    reads, offloaded = getattr(run.optimizer, "reads_weights", False), run.model.offload is not None
    return run.precision.automatic_restore(reads, offloaded, run.distributed.tensor > 1)


def _name_problems(run: RunConfig) -> Iterator[Problem]:
    """Yields `optimizer.name` or `adapter.name` where it is not that of the group's option."""
    for group in ("optimizer", "adapter"):
        node, kinds = getattr(run, group), option_schemas()[group]
        if kinds.get(node.name) is not type(node):
            right = f"is chosen by {group}=, as {group}={next(iter(kinds))}"
            yield Problem(f"{group}.name", node.name, right)


def _count_in_steps(run: RunConfig) -> None:
    """Turns `steps` and `eval_every` into steps where they count forward passes."""
    passes = run.optimizer.passes_per_step
    if run.budget == "forward_passes" and passes > 0:
        run.steps //= passes
        run.eval_every = max(run.eval_every // passes, 1)
    run.budget = "steps"


def identity_settings(run: RunConfig) -> dict[str, Any]:
    """Returns a run's settings as plain nested data, without those of output, device and logging.

    W&B shows them. `zo.config.identity.identity` says which of them make another run.
    """
    plain = asdict(run)
    del plain["budget"]
    for key in OUTSIDE_IDENTITY:
        del plain[key]
    divided = plain.pop("distributed")
    parts = {key: divided[key] for key in ("shards", "tensor") if divided[key] > 1}
    if parts and run.steps > 0:
        plain["distributed"] = parts
    for key in ("lr_grid", "lr_grid_of", "paper", "install", "offload"):
        del plain["model"][key]
    del plain["task"]["install"], plain["objective"]["workers"]
    if run.model.weights == "pretrained":
        del plain["model"]["architecture"]
    if replace(run.objective, workers=None) == ObjectiveConfig():
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
    if not run.steps and run.optimizer.name not in BASELINES:
        found.append("steps=0 trains nothing; the weights are scored as they are")
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
        stored in ("bfloat16", "float16")
        and run.adapter.trained_dtype(held) != "float32"
        and run.steps > 0
        and run.precision.rounding == "nearest"
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


def probe_note(run: RunConfig) -> list[str]:
    """Returns which noise and restore policy a run's probes have, and why; nothing of a run without probes."""
    if not (run.steps and run.optimizer.replays):
        return []
    how = run.precision
    taken = f"precision.noise={how.noise} precision.restore={how.restore}"
    automatic, reason = _automatic_restore(run)
    if (how.noise, how.restore) == ("philox", automatic):
        return [f"{taken}: the fast defaults ({reason}); precision=paper has the released codes'"]
    if (how.noise, how.restore) == ("torch", "merged"):
        return [f"{taken}: as the released codes; precision={how.name} is faster"]
    given = "as typed, or as the model's or the sweep's file has them"
    return [f"{taken}: {given}; the defaults are philox and {automatic}"]


def to_yaml(run: RunConfig) -> str:
    """Returns the resolved configuration as YAML, with the file of a method of one's own."""
    plain = asdict(run)
    if run.optimizer.file:
        plain["optimizer"]["file"] = run.optimizer.file
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def from_yaml(text: str) -> RunConfig:
    """Returns the configuration that `to_yaml` wrote. Raises ConfigError naming every key that is wrong."""
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError([Problem("config.yaml", "?", str(error).splitlines()[0])]) from None
    return from_plain(given)


def from_plain(given: Any) -> RunConfig:
    """Returns the configuration that plain nested data stand for, what `identity_settings` leaves out at its default.

    `${...}` is text here: a stored configuration refers to nothing.

    Raises:
        ConfigError: If it is none; every key that is missing, unknown or out of range is named.
    """
    sections = given if isinstance(given, dict) else {}
    absent: dict[str, Any] = {"precision": {}, "adapter": {}}
    for group in ("task", "optimizer", *absent):
        if not isinstance(found := sections.get(group, absent.get(group)), dict):
            raise ConfigError([Problem(group, found, "must be the group's settings")])
        sections[group] = {**found}
    typed = OmegaConf.structured(RunConfig)
    if LABEL in given["task"]:
        given["task"]["label"] = given["task"].pop(LABEL)
    if file := given["optimizer"].pop("file", None):
        if not isinstance(file, str):
            raise ConfigError([Problem("optimizer.file", file, "must be text, as FILE.py:CLASS")])
        method_code.option(file, typed=False)
    try:
        given["precision"] = PrecisionConfig.legacy_defaults | given["precision"]
        for group, default in (("optimizer", None), ("adapter", "none")):
            name, kinds = given[group].get("name", default), option_schemas()[group]
            if not isinstance(name, str) or name not in kinds:
                right = f"must be one of {', '.join(kinds)}"
                raise ConfigError([Problem(f"{group}.name", name, right)])
            setattr(typed, group, kinds[name])
            given[group] = {**kinds[name].legacy_defaults, **given[group]}
        return to_run_config(OmegaConf.merge(typed, _uninterpolated(given)))  # type: ignore[arg-type]
    except OmegaConfBaseException as error:
        key, said = error.full_key or _wrong_key(typed, given), str(error).splitlines()[0]
        raise ConfigError([Problem(str(key), "?", said)]) from None


def _wrong_key(typed: Any, given: Mapping[str, Any], *above: str) -> str:
    """Returns the key whose value cannot be merged, which OmegaConf does not name where a mapping or list is wrong."""

    def merges(key: str, value: Any) -> bool:
        for name in (key, *reversed(above)):
            value = {name: value}
        try:
            OmegaConf.merge(typed, _uninterpolated(value))
        except OmegaConfBaseException:
            return False
        return True

    wrong = next((key for key, value in given.items() if not merges(key, value)), "?")
    if isinstance(given.get(wrong), dict) and merges(wrong, {}):
        return _wrong_key(typed, given[wrong], *above, wrong)
    return ".".join((*above, wrong))


def _uninterpolated(value: Any) -> Any:
    """Returns nested data in which OmegaConf reads `${...}` as text."""
    if isinstance(value, dict):
        return {key: _uninterpolated(inside) for key, inside in value.items()}
    if isinstance(value, list):
        return [_uninterpolated(inside) for inside in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


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
        known = f"no learning rates of {run.optimizer.name} are known for {group}={own.name}"
        return [Problem("lr", ..., f"must be given, as -m lr=1e-4,1e-3,1e-2: {known}")]
    index = len(grid) // 2 if run.lr_index is None else run.lr_index
    if not 0 <= index < len(grid):
        right = f"must be 0 to {len(grid) - 1}: {run.optimizer.name} on {own.name} has {len(grid)} learning rates"
        return [Problem("lr_index", index, right)]
    run.lr = float(grid[index])
    return []
