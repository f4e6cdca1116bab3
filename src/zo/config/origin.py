"""The YAML file of conf/model or conf/task that a run starts from, where `path` leads somewhere else."""

import functools
import re
from pathlib import Path
from typing import Any

import yaml

from zo.lm.config import ModelConfig
from zo.tasks.config import TaskConfig

CONFIG_DIR = Path(__file__).resolve().parents[3] / "conf"


def follow_path(model: ModelConfig, task: TaskConfig) -> None:
    """Drops what the files say of their own paths alone, if `path` is another one.

    The model is named after its path unless `model.name` was given, and `model.lr_grid_of` says whose learning rates
    it is offered. Pinned revisions and install commands are those of the files' own paths.
    """
    files = _files("model")
    same_grid = [name for name, file in files.items() if file.get("lr_grid") == model.lr_grid]
    origin = model.name if model.name in files else next(iter(same_grid), "")
    if origin and model.path != files[origin]["path"]:
        if model.name == origin:
            model.name = name_of(model.path)
        if model.name != origin:
            model.lr_grid_of = origin
        if model.revision == files[origin].get("revision"):
            model.revision = None
        model.install = None
    file = _files("task").get(task.name)
    if file and (task.path, task.data_files) != (file["path"], file.get("data_files")):
        task.install = None
        if task.path != file["path"] and task.revision == file.get("revision"):
            task.revision = None


def name_of(path: str) -> str:
    """Returns the last component of a path or hub id, in letters that a file name may have."""
    cached = re.search(r"models--(?:.+--)?(.+?)/snapshots/", path)  # the hub's own cache
    last = cached[1] if cached else Path(path).expanduser().resolve().name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.") or "model"


@functools.cache
def _files(group: str) -> dict[str, dict[str, Any]]:
    """Returns the content of a group's files by their `name`."""
    read = [
        yaml.safe_load(f.read_text(encoding="utf-8")) for f in (CONFIG_DIR / group).glob("*.yaml")
    ]
    return {file["name"]: file for file in read if "path" in file}
