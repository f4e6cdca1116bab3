"""The YAML file of conf/model or conf/task that a run starts from, where `path` leads somewhere else."""

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from zo.config.digests import commit_of
from zo.config.precision import AUTO, NAMES, PrecisionConfig
from zo.lm.config import ModelConfig
from zo.tasks import hub, package_files
from zo.tasks.config import GENERATED, MISSING, TaskConfig

DEFAULT = "reviews-tiny"  # The model of conf/config.yaml: what a run has that names no other one

SUITE = Path(__file__).resolve().parents[3]
"""Where train.py, conf, launch and analysis are: a copy of the repository, or of a wheel's files inside the package."""

if not (SUITE / "train.py").is_file():
    SUITE = Path(__file__).resolve().parents[1] / "_suite"
CONFIG_DIR = SUITE / "conf"

SETTINGS = "zo.yaml"  # File of an exported model: the configuration of the run that made it


def follow_path(model: ModelConfig, task: TaskConfig, precision: PrecisionConfig) -> None:
    """Drops what the files say of their own paths alone, if `path` is another one.

    The model is named after its path unless `model.name` was given, and `model.lr_grid_of` says whose learning rates
    it is offered. Pinned revisions and install commands are those of the files' own paths. `precision.dtype=auto`
    becomes the dtype that a model of one's own is stored in, by its config.json, and float32 for a file's model,
    wherever its copy is.
    """
    files = _files("model")
    same_grid = [name for name, file in files.items() if file.get("lr_grid") == model.lr_grid]
    origin = model.name if model.name in files else next(iter(same_grid), "")
    elsewhere = origin and model.path != files[origin]["path"]
    if elsewhere and pinned("model", model.path) != (files[origin]["path"], model.revision):
        if model.name == origin:
            model.name = name_of(model.path)
        if model.revision == files[origin].get("revision"):
            model.revision = None
        model.install = None
        if origin == DEFAULT or model.name != origin:
            model.lr_grid_of = origin
            _follow_content(model, files)
    if precision.dtype == AUTO:
        stored = stored_dtype(model) if origin == DEFAULT else None
        precision.dtype = stored if stored in NAMES else "float32"
        precision.name = NAMES[precision.dtype]
    file = _files("task").get(task.name)
    if file and (task.path, task.data_files) != (file["path"], file.get("data_files")):
        task.install = None
        elsewhere = task.path != file["path"] and task.revision == file.get("revision")
        if elsewhere and pinned("task", task.path) != (file["path"], task.revision):
            task.revision = None


def pinned(group: str, path: str) -> tuple[str, str] | None:
    """Returns the hub's path and commit, if `path` is a copy of what a file of conf/model or conf/task pins."""
    known = {f["revision"]: f["path"] for f in _files(group).values() if f.get("revision")}
    commit = commit_of(Path(package_files.resolve(path))) if _is_directory(path) else None
    return (known[commit], commit) if commit is not None and commit in known else None


def trained_with(*paths: str | None) -> set[int]:
    """Returns the seeds of the runs that made the weights in some directories, if this suite exported them."""
    found, seen, left = set[int](), set[Path](), list(paths)
    while left:
        path = left.pop()
        file = Path(path or "").expanduser() / SETTINGS
        if not path or not _is_directory(path) or file in seen or not file.is_file():
            continue
        seen.add(file)
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
        if settings.get("steps"):
            found.add(settings["seed"])
        left += [settings[group].get("path") for group in ("model", "adapter")]
    return found


def _is_directory(path: str) -> bool:
    return not path.startswith(package_files.PREFIX) and Path(path).expanduser().is_dir()


def unknown_copies(model: ModelConfig, task: TaskConfig) -> list[str]:
    """Returns a sentence for each local copy that does not count as what its file pins, and how to make one."""
    said = []
    for group, path, name in (
        ("model", model.path, model.lr_grid_of or model.name),
        ("task", task.path, task.name),
    ):
        file = _files(group).get(name, {})
        own = file.get("revision") and path != file["path"] and _is_directory(path)
        if own and pinned(group, path) is None:
            kind = "--repo-type dataset " if group == "task" else ""
            said.append(
                f"{group}.path={path}: its files are not known to be those of {file['path']} at {file['revision']}, so"
                f" the runs have other ids and do not fill the paper's tables; `hf download {kind}{file['path']}"
                f" --revision {file['revision']} --local-dir DIRECTORY` makes a copy that does"
            )
    return said


def shared_copy(tasks: Iterable[TaskConfig]) -> tuple[str, list[str]] | None:
    """Returns a path given to several tasks whose files have different paths, and their names."""
    names: dict[str, dict[str, str]] = {}
    for task in tasks:
        file = _files("task").get(task.name)
        if file and task.path not in (file["path"], "csv", "json", "parquet"):
            names.setdefault(task.path, {}).setdefault(file["path"], task.name)
    return next(((path, [*of.values()]) for path, of in names.items() if len(of) > 1), None)


def read_also(task: TaskConfig) -> list[tuple[str, str]]:
    """Completes `task.also` from its file of conf/task; returns (key, valid range) of each invalid value."""
    if task.also is None:
        return []
    given = {"name": task.also} if isinstance(task.also, str) else task.also
    files = {n: file for n, file in _files("task").items() if file.get("kind") != "prompts"}
    named = given if isinstance(given, Mapping) else {}
    address = str(named.get("path", named.get("name")))
    if address.startswith(GENERATED):
        own = {"path": address, "name": address.removeprefix(GENERATED)}
        file = next(f for f in _files("task").values() if f["path"].startswith(GENERATED))
    elif (name := named.get("name")) in files:
        own, file = {}, files[name]
    else:
        right = f"must be {GENERATED}TASK, or a task of conf/task with answers: {', '.join(sorted(files))}"
        return [("also", right)]
    task.also = {k: v for k, v in {**file, **named, **own}.items() if k != "defaults"}
    known = {field.name for field in fields(TaskConfig)} - {"also"}
    if unknown := [key for key in task.also if key not in known]:
        return [("also", f"must have keys of a task alone, and {unknown[0]} is none")]
    if task.also.get("path") in (None, MISSING):
        return [("also", f"must have a path, as task.also={{name: {name}, path: held_out.csv}}")]
    try:
        also = TaskConfig(**task.also)
        if also.own_measure:
            right = "must be a named measure: the code of a function is the run's own task's"
            return [("also.measure", right)]
        return [(f"also.{key}", right) for key, right in also.problems()]
    except TypeError as error:  # a value of another type
        return [("also", f"must have values as conf/task: {error}")]


def own_path(name: str) -> str | None:
    """Returns the path in a model's file; None if there is no such file."""
    return _files("model").get(name, {}).get("path")


def _follow_content(model: ModelConfig, files: dict[str, dict[str, Any]]) -> None:
    """Gives a model that no file describes the kind that its own config.json says, and rates of a model of its size."""
    content = _content(model.path, model.revision)
    if content is None:
        return
    if model.kind == "decoder":
        model.kind = _kind(content)
    if model.lr_grid_of != DEFAULT:
        return
    sizes = {
        name: _size(file.get("architecture") or _content(file["path"], file.get("revision")) or {})
        for name, file in files.items()
        if file.get("lr_grid")
    }
    own = _size(content)
    known = {name: abs(math.log(size / own)) for name, size in sizes.items() if size and own}
    if known:
        model.lr_grid_of = min(known, key=lambda name: known[name])
        model.lr_grid = files[model.lr_grid_of]["lr_grid"]


def stored_dtype(model: ModelConfig) -> str | None:
    """Returns the dtype that the weights of a model that no file describes are stored in, by its config.json."""
    own = model.lr_grid_of and model.weights == "pretrained"
    content = _content(model.path, model.revision) if own else None
    found = (content or {}).get("dtype") or (content or {}).get("torch_dtype")
    return found if isinstance(found, str) else None


def _kind(content: Mapping[str, Any]) -> str:
    """Returns the kind of a model, by its config.json."""
    classes = " ".join(content.get("architectures") or [])
    if content.get("is_encoder_decoder"):
        return "encoder-decoder"
    return "masked" if "MaskedLM" in classes else "decoder"


def _size(content: Mapping[str, Any]) -> int:
    """Returns about how many parameters a model has: 12 per layer and square of its width, and its embedding."""
    width = next((content[k] for k in ("hidden_size", "n_embd", "d_model") if k in content), 0)
    layers = ("num_hidden_layers", "n_layer", "num_layers")
    depth = next((content[k] for k in layers if k in content), 0)
    return int(12 * depth * width**2 + content.get("vocab_size", 0) * width)


@functools.cache
def _content(path: str, revision: str | None) -> dict[str, Any] | None:
    """Returns a model's config.json: of a directory, of the hub's cache on this machine, or of the hub; None elsewhere.

    What it says is needed before a run has its id, which must not depend on what the cache happens to hold.
    """
    try:
        file = Path(package_files.resolve(path), "config.json")
        if not (package_files.is_path(path) or file.parent.exists()):
            file = Path(hub.file(path, "config.json", revision))
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # whoever loads the model says so
        return None
    return content if isinstance(content, dict) else None


def name_of(path: str) -> str:
    """Returns the last component of a path or hub id, in letters that a file name may have."""
    cached = re.search(r"models--(?:.+--)?(.+?)/snapshots/", path)  # the hub's own cache
    last = cached[1] if cached else Path(path).expanduser().resolve().name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.") or "model"


@functools.cache
def _files(group: str) -> dict[str, dict[str, Any]]:
    """Returns the content of a group's files by their `name`."""
    paths = (CONFIG_DIR / group).glob("*.yaml")
    read = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths]
    own = [(file or {}).get(group, file or {}) for file in read]  # of a file for all of a run
    return {file["name"]: file for file in own if {"name", "path"} <= file.keys()}
