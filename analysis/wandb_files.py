"""Read one `.wandb` run file, the transaction log that W&B writes on this machine, without network.

The file is a LevelDB log: a 7-byte header, then 32 KiB blocks of checksummed chunks whose joined
bodies are protobuf `Record`s. A run that was killed leaves a torn tail; what precedes it is kept,
and `RunFile.torn_at` says where the reading stopped.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2 as pb

FILE_HEADER = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
BLOCK_BYTES = 32768
CHUNK_HEADER = struct.Struct("<IHB")  # crc32 of type and body, length of body, type
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4  # chunk types; 0 is the padding at the end of a block


class LogError(ValueError):
    """What the logs hold cannot be used; the message is one sentence for the user."""


class _TornError(Exception):
    """The log ends, or stops making sense, at byte `args[0]`."""


@dataclass
class RunFile:
    """The content of one run file, a fragment of a run if the run was resumed.

    Attributes:
        path: where it was read.
        run_id: W&B's id; of the file name if the file was torn before its run record.
        identified: whether the file holds the run record (config and group), W&B's first record.
        group: W&B group; empty without one.
        started: seconds since 1970, by the clock of the machine that ran it.
        config: flat, nested keys joined by dots (`optimizer.name`); lists stay lists.
        summary: flat, as `config`; the last value of every history key is among it.
        history: one mapping per step, with `_step`.
        exit_code: None if the process was killed or is still running.
        torn_at: byte at which reading stopped early; None if the file is whole.
    """

    path: Path
    run_id: str
    identified: bool = False
    group: str = ""
    started: float = 0.0
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int | None = None
    torn_at: int | None = None


def read_run_file(path: Path) -> RunFile:
    """Read a run file as far as it is readable.

    Raises:
        LogError: the file does not begin as a .wandb file does.
    """
    data = path.read_bytes()
    run = RunFile(path=path, run_id=path.stem.removeprefix("run-"))
    if len(data) < len(FILE_HEADER) and FILE_HEADER.startswith(data):
        run.torn_at = len(data)  # killed before the first flush
        return run
    if not data.startswith(FILE_HEADER):
        raise LogError(f"{path} is not a .wandb run file")
    try:
        for body in _record_bodies(data):
            record = pb.Record()  # type: ignore[attr-defined]
            record.ParseFromString(body)
            _take(run, record)
    except _TornError as torn:
        run.torn_at = torn.args[0]
    run.summary = _without_internal((key, _value(text)) for key, text in run.summary.items())
    return run


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Join the keys of nested mappings by dots; an empty mapping stays as a value."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _record_bodies(data: bytes) -> Iterator[bytes]:
    """Yield the bytes of each record; raise _TornError where the log stops early."""
    position, record_start = len(FILE_HEADER), len(FILE_HEADER)
    parts: list[bytes] = []  # of a record that spans blocks
    while position < len(data):
        left_in_block = BLOCK_BYTES - position % BLOCK_BYTES
        if left_in_block < CHUNK_HEADER.size:
            position += left_in_block
            continue
        start = position + CHUNK_HEADER.size
        if start > len(data):
            raise _TornError(position)
        checksum, length, kind = CHUNK_HEADER.unpack_from(data, position)
        if (checksum, length, kind) == (0, 0, 0):
            position += left_in_block
            continue
        body = data[start : start + length]
        if len(body) < length or zlib.crc32(body, zlib.crc32(bytes([kind]))) != checksum:
            raise _TornError(position)
        if kind in (WHOLE, FIRST):
            parts, record_start = [], position
        parts.append(body)
        position = start + length
        if kind in (WHOLE, LAST):
            yield b"".join(parts)
            parts = []
    if parts:
        raise _TornError(record_start)


def _take(run: RunFile, record: Any) -> None:
    """Add what one record says to the run."""
    kind = record.WhichOneof("record_type")
    if kind == "history":
        row = dict(_items(record.history.item))
        row.setdefault("_step", record.history.step.num)
        run.history.append(row)
    elif kind == "summary":
        for item in record.summary.update:  # text until the file is read: one follows every step
            run.summary[_key(item)] = item.value_json
        for item in record.summary.remove:
            run.summary.pop(_key(item), None)
    elif kind == "run":
        run.identified = True
        run.run_id, run.group = record.run.run_id, record.run.run_group
        run.started = record.run.start_time.ToMicroseconds() / 1e6
        run.config |= _config(record.run.config)
    elif kind == "config":
        run.config |= _config(record.config)
    elif kind == "exit":
        run.exit_code = record.exit.exit_code


def _config(record: Any) -> dict[str, Any]:
    return flatten(_without_internal(_items(record.update)))


def _items(items: Any) -> Iterator[tuple[str, Any]]:
    return ((_key(item), _value(item.value_json)) for item in items)


def _key(item: Any) -> str:
    nested = item.nested_key
    return item.key if not nested else nested[0] if len(nested) == 1 else ".".join(nested)


def _value(text: str) -> Any:
    """Parse a JSON value; NaN and Infinity are numbers here, and numbers take the short way."""
    try:
        return int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        return json.loads(text)


def _without_internal(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Drop W&B's own keys, which begin with an underscore."""
    return {key: value for key, value in items if not key.startswith("_")}
