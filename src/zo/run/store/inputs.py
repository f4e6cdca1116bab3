"""Inputs of a run: digests of files, examples and base weights, recorded at its start, compared at every later one."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from zo.config import RunConfig, method_code
from zo.config.identity import identity, input_files
from zo.run.store import atomic
from zo.tasks import Example

NAME = "inputs.json"

READ = {
    "train": "the training examples are",
    "validation": "the validation examples are",
    "test": "the test examples are",
    "also": "the examples of task.also are",
    "weights": "the base weights are",
    "noise": "the noise backend is",
    "parameters": "the number of trainable values is",
}
"""What is recorded once data and model are loaded, and how a sentence about it begins."""


class InputsError(ValueError):
    """Data, weights or noise that are not those a run began with; one sentence."""


@dataclass
class Inputs:
    """What a run's numbers come from.

    Attributes:
        identity: See `zo.config.identity.identity`; the run's id is its hash.
        files: Digests of local files and directories, by the configuration key that names each.
        read: Digest of each split's examples and of the base weights, and the noise backend; empty before the first
            start.
    """

    identity: dict[str, Any]
    files: dict[str, str]
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
            content = atomic.unseal((directory / NAME).read_bytes())
            return cls(**content) if content is not None else None
        except (OSError, TypeError):
            return None

    def save(self, directory: Path, writer: str = "") -> None:
        """Records them in a run's directory."""
        atomic.replace(directory / NAME, atomic.seal(asdict(self)), writer)

    def check_files(self, cfg: RunConfig, directory: Path) -> None:
        """Compares files with those that are there now. A missing file is not missed before it is read.

        Raises:
            InputsError: If one has another content.
        """
        now, code = input_files(cfg), method_code.KEY
        for key in {code: None, **self.files}:
            was = self.files.get(key)  # code without a digest is the released one
            if now.get(key, None if key == code else was) != was:
                raise InputsError(
                    f"{key}: the content has changed since {directory} began; put the old content back, "
                    "or repeat the run's command with resume=false to make it from what is there now"
                )

    def check_read(self, read: Mapping[str, str], directory: Path) -> None:
        """Compares what was loaded with what the run began with.

        Raises:
            InputsError: If it is something else.
        """
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
    for path in sorted(directory.parent.glob(f"{method}-*/{NAME}")):
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
