"""Run identity: an id from the settings and the input files that decide a run's numbers."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from zo.config import digests, method_code, presets, reward_code
from zo.config.checks import Problem
from zo.config.schema import LABEL, identity_settings
from zo.config.settings import RunConfig
from zo.differences import ONLY_PROBES
from zo.lm import source
from zo.lm.adapters.config import PromptAdapter
from zo.lm.baselines import reads_train
from zo.lm.config import ModelError
from zo.tasks import package_files
from zo.tasks.config import TaskError
from zo.tasks.reading import check_addresses
from zo.weights.constraints import RESTORE_POLICIES

NUMBERS = 2
"""To be raised when a configuration begins to give other numbers, or a dataclass another default: changes every id."""

FILE_FORMATS = ("csv", "json", "parquet", "text")
"""Values of `task.path` that name the format of `task.data_files`."""

HUB = "hub:"
"""Beginning of what stands for the digest of a copy of a commit of the hub, which counts as that commit."""

PINNED = ("model", "task")  # Groups whose files pin commits

NAMED = {"optimizer", "objective", "adapter"}
"""Groups whose `name` says what is computed; that of another group is a label."""


def run_id(run: RunConfig, files: Mapping[str, str] | None = None) -> str:
    """Returns a run's id: the method's name, a dash and 12 hexadecimal digits."""
    return id_of(identity(run, files))


def id_of(decisive: Mapping[str, Any]) -> str:
    """Returns the id that an identity has."""
    canonical = json.dumps(decisive, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return f"{decisive['optimizer']['name']}-{digest[:12]}"


def identity(run: RunConfig, files: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns what decides a run's numbers, as plain nested data: settings that differ from defaults, and inputs.

    A local file or directory counts by its content, an address of a hub or a pip package by its text. `files` are
    digests to take for those of its input files.
    """
    files = input_files(run, packages=False) if files is None else files
    plain = _normalised(run)
    for group in plain.keys() & {"model", "task", "precision", *NAMED}:
        plain[group] = _changed(getattr(run, group), plain[group])
    if run.optimizer.revision:
        plain["optimizer"]["numbers"] = run.optimizer.revision
    for group in plain.keys() & NAMED:
        plain[group]["name"] = getattr(run, group).name
    decisive = {**_changed(run, plain), "numbers": NUMBERS}
    for key, address in _addresses(run):
        if key not in files or address.startswith(package_files.PREFIX):
            continue
        _put(decisive, key, files[key])
        group = decisive[key.partition(".")[0]]
        if key.startswith("task.also."):
            continue
        if files[key].startswith(HUB):
            group["path"], _, group["revision"] = files[key].removeprefix(HUB).partition("@")
            continue
        for of_the_hub in ("revision", "gguf_file"):
            group.pop(of_the_hub, None)
        if key.startswith("task.data_files.") and run.task.path not in FILE_FORMATS:
            group["path"] = "directory of data_files"
    of_rewards = (reward_code.BESIDE, reward_code.FILES, reward_code.OF_MEASURE)
    for code in (method_code.KEY, *of_rewards):
        if code in files:
            _put(decisive, code, files[code])
    return decisive


def input_files(run: RunConfig, packages: bool = True) -> dict[str, str]:
    """Returns the digests of the local files and directories that a run reads, by the key that names each.

    The method's code is one of them where it is not the released one, and so are the Python files beside a reward's.
    Files of pip packages count if `packages` says so.
    """
    found: dict[str, str] = {}
    for key, address in _addresses(run):
        if address.startswith(package_files.PREFIX) and not packages:
            continue
        group, _, name = key.partition(".")
        digest = None
        try:
            if name == "path" and group in PINNED:
                copied = presets.pinned(group, getattr(run, group).path)
                digest = HUB + "@".join(copied) if copied else None
            digest = digest or digests.of_address(package_files.resolve(address))
        except OSError:  # not there, or not to be read: whoever loads it says so
            continue
        if digest is not None:
            found[key] = digest
    if run.steps and (code := method_code.of_method(run.optimizer.name)):
        found[method_code.KEY] = code
    if run.objective.function and (code := reward_code.of_beside(run.objective.function)):
        found[reward_code.BESIDE] = code
    if run.objective.functions and (code := reward_code.of_functions(run.objective.code())):
        found[reward_code.FILES] = code
    if run.task.own_measure and (code := reward_code.of_functions([run.task.own_measure])):
        found[reward_code.OF_MEASURE] = code
    return found


def check_paths(run: RunConfig) -> Problem | None:
    """Returns why a new run cannot read its model or data here; None if they are here, or the run has begun.

    Answers as far as that is known without a hub, and imports no torch.
    """
    functions = dict.fromkeys(run.objective.code(), "objective.function")
    if run.task.own_measure:
        functions[run.task.own_measure] = "task.measure"
    try:
        if run.steps:
            method_code.of_method(run.optimizer.name)
        for function, key in functions.items():
            if file := reward_code.source(function):
                reward_code.beside(file, key)
    except TaskError as error:
        key, _, right = str(error).partition(": ")
        return Problem(key, ..., right)
    try:
        if run.model.weights == "pretrained" or not run.model.architecture:
            source.present(run.model)
        check_addresses(run.task)
        for function, key in functions.items():
            place = function.partition(":")[0]
            if place.endswith(".py") and reward_code.source(function) is None:
                raise TaskError(f"{key}: no such file {place}; give FILE.py:FUNCTION")
    except (ModelError, TaskError) as error:
        key, _, right = str(error).partition(": ")
        begun = os.path.exists(Path(run.out, run_id(run)))  # it may need them no more
        return None if begun else Problem(key, ..., right)
    return None


def _addresses(run: RunConfig) -> Iterator[tuple[str, str]]:
    """Yields the keys that name what a run reads, and where it is."""
    model, task = run.model, run.task
    if model.weights == "pretrained" or not model.architecture:
        inside = f"/{model.gguf_file}" if model.gguf_file else ""
        yield "model.path", model.path + inside
    if not task.data_files:
        yield "task.path", task.path + (f"/{task.data_dir}" if task.data_dir else "")
    if isinstance(task.also, Mapping):
        also: Mapping[str, Any] = task.also
        for split, file in (also.get("data_files") or {"": ""}).items():
            key = f"task.also.data_files.{split}" if split else "task.also.path"
            yield key, _within(also.get("path", ""), also.get("data_dir"), file)
    if run.objective.function and run.objective.code():
        yield "objective.file", reward_code.address(run.objective.function)
    if getattr(run.adapter, "path", None):
        yield "adapter.path", run.adapter.path
    for split, file in (task.data_files or {}).items():
        yield f"task.data_files.{split}", _within(task.path, task.data_dir, file)


def _within(path: str, data_dir: str | None, file: str) -> str:
    """Returns the address of a file of a task's path, as `zo.tasks.reading` finds it; of none that of the path."""
    if not file:
        return path + (f"/{data_dir}" if data_dir else "")
    if path in FILE_FORMATS or file.startswith(package_files.PREFIX):
        return file
    return str(Path(path, data_dir or "", file))


def _normalised(run: RunConfig) -> dict[str, Any]:
    """Returns a run's settings, each in one form, without those that decide nothing."""
    plain = identity_settings(run)
    for group in ("model", "task", "precision"):
        del plain[group]["name"]
    plain["model"].pop("sha256")
    plain["task"][LABEL] = plain["task"].pop("label")  # the key that ids are made with
    optimizer, precision = plain["optimizer"], plain["precision"]
    if optimizer.get("m", 0) in (None, optimizer.get("k", 0) + 1):
        optimizer.pop("m", None)
    # A policy that is not exact has the same bits in another number of passes.
    if not RESTORE_POLICIES[precision["restore"]].exact:
        del precision["restore"]
    if run.adapter.name == "none":  # no block is frozen
        del precision["prefix_cache_gib"]
    if run.precision.dtype == "float32":  # so is an adapter
        plain.get("adapter", {}).pop("dtype", None)
    if run.steps == 0:
        plain["precision"] = {k: v for k, v in precision.items() if k not in ONLY_PROBES}
        if not reads_train(run.optimizer):
            sampled = run.task.eval_samples > 1 and run.task.temperature > 0
            begun = isinstance(run.adapter, PromptAdapter) and run.adapter.path is None  # at random
            if not (sampled or begun):
                del plain["seed"]
            plain["optimizer"] = {}
    if run.model.weights == "random" and run.model.architecture:
        del plain["model"]["path"]
    return plain


def _changed(config: Any, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of `plain` that differ from their defaults in the dataclass of `config`.

    Where a method says what is meant by an unwritten setting, that is the default.
    """
    defaults = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(config)
    }
    defaults[LABEL] = defaults.get("label")
    defaults |= getattr(config, "legacy_defaults", {})
    return {key: value for key, value in plain.items() if value != defaults[key]}


def _put(nested: dict[str, Any], key: str, value: Any) -> None:
    """Sets the entry with a dotted key."""
    *above, name = key.split(".")
    for part in above:
        nested = nested[part]
    nested[name] = value
