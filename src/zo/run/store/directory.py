"""A run's configuration and inputs as they were when it began, frozen in its directory and compared ever after.

Inputs are digests of files, examples and base weights.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from zo.config import ConfigError, RunConfig, from_yaml, identity_settings, method_code, to_yaml
from zo.config.identity import id_of, identity, input_files, run_id
from zo.config.presets import SETTINGS as SETTINGS
from zo.lm.config import ModelConfig
from zo.run.store import atomic
from zo.tasks import Example, TaskConfig
from zo.tasks.data import complete

CONFIG, INPUTS = "config.yaml", "inputs.json"
TASK = "task.json"
REFERENCE = "reference.json"
REMEDY = "remove this file and repeat the run's command, which writes it anew and keeps the steps"

READ = {
    "train": "the training examples are",
    "validation": "the validation examples are",
    "test": "the test examples are",
    "also": "the examples of task.also are",
    "weights": "the base weights are",
    "reference": "the reference's log-probabilities are",
    "noise": "the noise backend is",
    "parameters": "the number of trainable values is",
}
"""What is recorded once data and model are loaded, and how a sentence about it begins."""


class DirectoryError(ValueError):
    """A run directory that cannot be used; one sentence that names it."""


class InputsError(ValueError):
    """Data, weights or noise that are not those a run began with; one sentence."""


@dataclass
class Inputs:
    """What a run's numbers come from."""

    identity: dict[str, Any]  # See `zo.config.identity.identity`; the run's id is its hash
    files: dict[str, str]  # Digests of local files and directories, by the key that names each
    # Digests of the splits' examples and of the base weights, and the rest of READ; empty before the first start
    read: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, cfg: RunConfig) -> "Inputs":
        """Returns the inputs of a configuration as they are now."""
        files = input_files(cfg)
        return cls(identity(cfg, files), files)

    @classmethod
    def load(cls, directory: Path) -> "Inputs | None":
        """Returns what a run's directory has recorded; None if that is nothing, or torn or altered."""
        try:
            content = atomic.unseal((directory / INPUTS).read_bytes())
            return cls(**content) if content is not None else None
        except (OSError, TypeError):
            return None

    def directory(self, cfg: RunConfig) -> Path:
        """Returns where a run of these inputs lives: `<out>/<run id>`."""
        return Path(cfg.out) / id_of(self.identity)

    def save(self, directory: Path, writer: str = "") -> None:
        """Records them in a run's directory."""
        atomic.replace(directory / INPUTS, atomic.seal(asdict(self)), writer)

    def check_files(self, now: Mapping[str, str], directory: Path) -> None:
        """Raises InputsError if a file has another content now. A missing file is not missed before it is read."""
        code = method_code.KEY
        for key in {code: None, **self.files}:
            was = self.files.get(key)  # code without a digest is the released one
            if now.get(key, None if key == code else was) != was:
                raise InputsError(
                    f"{key}: the content has changed since {directory} began; put the old content back, "
                    "or repeat the run's command with resume=false to make it from what is there now"
                )

    def check_read(self, read: Mapping[str, str], directory: Path) -> None:
        """Raises InputsError if something else was loaded than what the run began with."""
        for key, was in self.read.items():
            if (now := read.get(key, was)) != was:
                raise InputsError(
                    f"{directory}: {READ[key]} not as when the run began ({now} instead of {was}); "
                    "put the old state back, or repeat the run's command with resume=false to make it anew"
                )


def digest_examples(examples: list[Example]) -> str:
    """Returns the digest of a split's columns and labels, in their order."""
    digest = xxhash.xxh3_128()
    for example in examples:
        digest.update(json.dumps([example.fields, example.label], default=str).encode())
    return f"xxh3_128:{digest.hexdigest()}"


def related(directory: Path, own: Inputs) -> Iterator[tuple[Path, Inputs, set[str]]]:
    """Yields the other runs of the method beside this one, their inputs, and the keys in which they differ from it."""
    method = own.identity["optimizer"]["name"]
    mine = flat(own.identity)
    for path in sorted(directory.parent.glob(f"{method}-*/{INPUTS}")):
        other = Inputs.load(path.parent)
        if path.parent != directory and other is not None:
            yield path.parent, other, differing(mine, flat(other.identity))


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """Returns the keys whose values differ, or that only one of two mappings has."""
    absent = object()
    return {k for k in {**one, **other} if one.get(k, absent) != other.get(k, absent)}


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested data with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def freeze(cfg: RunConfig, inputs: Inputs | None = None) -> Path:
    """Returns `<out>/<run id>`; makes it with configuration and inputs, unless they are there already.

    `inputs` are the configuration's, if the caller has them.

    Raises:
        DirectoryError: If it cannot be written, or holds the configuration of another run.
    """
    wanted = inputs or Inputs.of(cfg)
    directory = wanted.directory(cfg)
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
        was = flat(identity_settings(cfg)).get(key, "not there")
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
        inside = sorted(of.parent for of in directory.glob(f"*/{CONFIG}"))
        one = f", as {inside[0]}" if inside else ""
        raise DirectoryError(f"{path}: {error.strerror}; give a run's directory{one}") from None
    except method_code.UntrustedError as error:
        raise DirectoryError(f"{directory}: {error}") from None
    except (ConfigError, UnicodeDecodeError) as error:
        why = f"{path} is not a run's configuration: {_one_line(error)}"
        raise DirectoryError(f"{why}; {REMEDY}") from None
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
