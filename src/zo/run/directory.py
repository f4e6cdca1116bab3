"""A run's directory, and its configuration as it was when the run began: frozen there, compared ever after."""

import os
from pathlib import Path
from typing import Any

from zo.config import ConfigError, RunConfig, from_yaml, identity, scientific, to_yaml
from zo.run import atomic

CONFIG = "config.yaml"
UNSET = "not there"


class DirectoryError(ValueError):
    """A run directory that cannot be used; one sentence that names it."""


def freeze(cfg: RunConfig) -> Path:
    """Makes the run's directory and writes its configuration there, unless it is there already.

    Args:
        cfg: Checked configuration.

    Returns:
        The directory: `<out>/<run id>`.

    Raises:
        DirectoryError: If it cannot be written, or holds the configuration of another run.
    """
    wanted, directory = scientific(cfg), directory_of(cfg)
    path = directory / CONFIG
    try:
        if not path.exists():
            directory.mkdir(parents=True, exist_ok=True)
            atomic.replace(path, to_yaml(cfg), writer=f".{os.getpid()}")
            return directory
        frozen = scientific(from_yaml(path.read_text()))
    except OSError as error:
        raise DirectoryError(f"{error.filename}: {error.strerror}; out= chooses another") from None
    except ConfigError as error:
        raise DirectoryError(f"{path} is not this run's: {error}") from None
    if frozen != wanted:
        was, now = _flat(wanted), _flat(frozen)
        key = next(k for k in {**was, **now} if was.get(k, UNSET) != now.get(k, UNSET))
        raise DirectoryError(
            f"{path} was changed after the run began: {key} was {was.get(key, UNSET)}; put it back, "
            "and ask for what you want on the command line: it is another run"
        )
    return directory


def directory_of(cfg: RunConfig) -> Path:
    """Returns where a run lives: `<out>/<run id>`."""
    return Path(cfg.out) / identity.run_id(cfg.optimizer.name, scientific(cfg))


def load(directory: Path) -> RunConfig:
    """Returns the configuration of the run in a directory, which may have been moved, to go on with it.

    Raises:
        DirectoryError: If it holds none.
    """
    path = directory / CONFIG
    try:
        cfg = from_yaml(path.read_text())
    except OSError as error:
        raise DirectoryError(f"{path}: {error.strerror}; a run's directory is wanted") from None
    except ConfigError as error:
        raise DirectoryError(f"{path} is not a run's configuration: {error}") from None
    cfg.out, cfg.resume = str(directory.resolve().parent), True
    if directory.resolve().name != (wanted := directory_of(cfg).name):
        raise DirectoryError(
            f"{path} is the configuration of {wanted}, not of {directory.resolve().name}: it was "
            "changed, or the directory renamed; put it back"
        )
    return cfg


def _flat(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested data with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
