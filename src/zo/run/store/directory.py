"""A run's directory, and its configuration as it was when the run began: frozen there, compared ever after."""

import json
import os
from dataclasses import asdict
from pathlib import Path

from zo.config import ConfigError, RunConfig, from_yaml, identity_settings, to_yaml
from zo.config.identity import id_of, identity, run_id
from zo.config.presets import SETTINGS as SETTINGS
from zo.lm.config import ModelConfig
from zo.run.store import atomic
from zo.run.store.inputs import NAME as INPUTS
from zo.run.store.inputs import Inputs, differing, flat
from zo.tasks import TaskConfig
from zo.tasks.data import complete

CONFIG = "config.yaml"
TASK = "task.json"
UNSET = "not there"
REMEDY = "remove this file and repeat the run's command, which writes it anew and keeps the steps"


class DirectoryError(ValueError):
    """A run directory that cannot be used; one sentence that names it."""


def freeze(cfg: RunConfig) -> Path:
    """Makes the run's directory and writes configuration and inputs there, unless they are there already.

    Returns:
        The directory: `<out>/<run id>`.

    Raises:
        DirectoryError: If it cannot be written, or holds the configuration of another run.
    """
    wanted = Inputs.of(cfg)
    directory = Path(cfg.out) / id_of(wanted.identity)
    path = directory / CONFIG
    try:
        if not path.exists():
            directory.mkdir(parents=True, exist_ok=True)
            writer = f".{os.getpid()}"
            if Inputs.load(directory) is None:
                wanted.save(directory, writer)
            atomic.replace(path, to_yaml(cfg), writer)
            return directory
        frozen = from_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        where = error.filename or directory
        raise DirectoryError(f"{where}: {error.strerror}; out= chooses another") from None
    except (ConfigError, UnicodeDecodeError) as error:
        raise DirectoryError(f"{path} is not this run's: {_one_line(error)}; {REMEDY}") from None
    recorded = Inputs.load(directory) or Inputs.of(frozen)
    found = identity(frozen, recorded.files)
    if found != wanted.identity:
        key = min(differing(flat(wanted.identity), flat(found)))
        was = flat(identity_settings(cfg)).get(key, UNSET)
        raise DirectoryError(
            f"{path} was changed after the run began: {key} was {was}; restore "
            "that value, and give the new one on the command line: it is another run"
        )
    return directory


def remove_partial_writes(directory: Path) -> None:
    """Removes what processes left that were killed while they froze the run, which is frozen since."""
    for name in (CONFIG, INPUTS):
        for left in directory.glob(f".{name}.*.partial"):
            left.unlink(missing_ok=True)


def directory_of(cfg: RunConfig) -> Path:
    """Returns where a run lives: `<out>/<run id>`."""
    return Path(cfg.out) / run_id(cfg)


def load(directory: Path) -> RunConfig:
    """Returns the configuration of the run in a directory, which may have been moved, to go on with it.

    Raises:
        DirectoryError: If it holds none.
    """
    path = directory / CONFIG
    try:
        cfg = from_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DirectoryError(f"{path}: {error.strerror}; a run's directory is wanted") from None
    except (ConfigError, UnicodeDecodeError) as error:
        raise DirectoryError(
            f"{path} is not a run's configuration: {_one_line(error)}; {REMEDY}"
        ) from None
    cfg.out, cfg.resume = str(directory.resolve().parent), True
    recorded = Inputs.load(directory)
    wanted = run_id(cfg, recorded.files if recorded is not None else None)
    if directory.resolve().name != wanted:
        raise DirectoryError(
            f"{path} is the configuration of the run {wanted}, but its directory is named "
            f"{directory.resolve().name}; undo the change of the file, or rename the directory"
        )
    return cfg


def base_of(adapter: str | None) -> ModelConfig | None:
    """Returns the model that an exported adapter was trained on; None if no export wrote it."""
    try:
        return from_yaml(Path(str(adapter), SETTINGS).read_text(encoding="utf-8")).model
    except (OSError, ConfigError, UnicodeDecodeError):
        return None


def write_task(directory: Path, cfg: RunConfig, task: TaskConfig) -> None:
    """Writes a run's task as the data completed it, if they did: predictions need it where the data are gone."""
    if task != cfg.task:
        atomic.replace(directory / TASK, json.dumps(asdict(task), indent=1, default=str) + "\n")


def task_of(directory: Path, cfg: RunConfig) -> TaskConfig:
    """Returns a run's complete task; of a run that stored none, what the data still tell.

    Raises:
        DirectoryError: If what is stored is no task.
        TaskError: If data are needed and out of reach.
    """
    path = directory / TASK
    if not path.exists():
        return complete(cfg.task)[0]
    try:
        return TaskConfig(**json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        why = f"{path} is not the run's task: {_one_line(error)}"
        raise DirectoryError(f"{why}; remove it, and the data tell the task") from None


def _one_line(error: Exception) -> str:
    return "; ".join(str(error).splitlines())
