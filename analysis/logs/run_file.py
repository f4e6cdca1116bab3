"""Read one `.wandb` run file, the transaction log that W&B writes on this machine, without network.

The file is a LevelDB log: a 7-byte header, then 32 KiB blocks of checksummed chunks whose joined
bodies are protobuf `Record`s. A run that was killed leaves a torn tail, a bad disk a wrong checksum; what precedes
it is kept, `Fragment.torn_at` says where the reading stopped, and what follows it is not read: behind a lost
record nobody knows what else is missing.

Read here, since wandb 0.31 has no reader in Python any more (`sdk.internal.datastore` is gone), and
item by item W&B's protobuf classes need 2.8 times as long: 1.7 against 0.6 s of processor time for 20,000 steps.
"""

import json
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from wandb.proto import wandb_internal_pb2 as pb

from analysis.logs.fragments import Fragment, with_history
from analysis.logs.history import STEP
from analysis.logs.records import HISTORY, SUMMARY, Ints, Items, items, kinds_and_payloads

FILE_HEADER = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
BLOCK_BYTES = 32768
CHUNK_HEADER = struct.Struct("<IHB")  # crc32 of type and body, length of body, type
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4  # chunk types; 0 is the padding at the end of a block
KIND_CHECKSUM = [zlib.crc32(bytes([kind])) for kind in range(256)]  # of a chunk's type alone
CLOCK = re.compile(  # a summary record that follows every step, and has W&B's own keys alone
    rb"\x08[^\x1a]{1,5}\x1a.(?:\n.(?:\x12\x06_wandb\x12\x07runtime|[\n\x12]\x08_runtime)\x82\x01.[0-9.e+-]+)+",
    re.DOTALL,
)


class LogError(ValueError):
    """What the logs hold cannot be used; the message is one sentence for the user.

    Whatever reads, chooses or compares runs may raise it; `analysis.report.command.main` prints it.
    """


def read_run_file(path: Path) -> Fragment:
    """Read a run file as far as it is readable: a fragment of a run, if the run was resumed."""
    data = path.read_bytes()
    run = Fragment(str(path), path.stem.removeprefix("run-"))
    if len(data) < len(FILE_HEADER) and FILE_HEADER.startswith(data):
        run.torn_at = len(data)  # killed before the first flush
        return run
    if not data.startswith(FILE_HEADER):
        raise LogError(f"{path} is not a .wandb run file")
    data, ends, run.torn_at = _bodies(data)
    return with_history(run, _take_records(run, data, ends))


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Join the keys of nested mappings by dots; an empty mapping stays as a value."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _bodies(data: bytes) -> tuple[bytes, Ints, int | None]:
    """The bodies of all records joined, where each ends, and the byte where the log stops early."""
    view, total, position = memoryview(data), len(data), len(FILE_HEADER)
    header, header_at, crc32 = CHUNK_HEADER.size, CHUNK_HEADER.unpack_from, zlib.crc32
    record_start, block_end = position, BLOCK_BYTES
    bodies: list[memoryview] = []
    parts: list[memoryview] = []  # of a record that spans blocks
    ends: list[int] = []
    length_so_far = 0
    while position < total:
        start = position + header
        if start > block_end:  # the rest of a block is too small for a chunk
            position, block_end = block_end, block_end + BLOCK_BYTES
            continue
        if start > total:
            break
        checksum, length, kind = header_at(data, position)
        if kind == 0 and length == 0 and checksum == 0:
            position, block_end = block_end, block_end + BLOCK_BYTES
            continue
        body = view[start : start + length]
        if len(body) < length or crc32(body, KIND_CHECKSUM[kind]) != checksum:
            break
        position = start + length
        if kind == WHOLE:
            parts = []
            bodies.append(body)
            length_so_far += length
            ends.append(length_so_far)
            continue
        if kind == FIRST:
            parts, record_start = [], start - header
        parts.append(body)
        if kind == LAST:
            bodies += parts
            length_so_far += sum(map(len, parts))
            ends.append(length_so_far)
            parts = []
    whole = position >= total and not parts
    torn_at = None if whole else record_start if parts else position
    return b"".join(bodies), np.array(ends, dtype=np.int64), torn_at


def _take_records(run: Fragment, data: bytes, ends: Ints) -> pa.Table:
    """Add what the records say to the run; its history."""
    array = np.frombuffer(data, dtype=np.uint8)
    starts = np.concatenate([np.zeros(min(1, len(ends)), np.int64), ends[:-1]])
    kinds, payloads = kinds_and_payloads(array, starts, ends)
    usual = np.flatnonzero(kinds)
    found = items(array, usual, payloads[usual], ends[usual])
    no_step = _without_step(found, kinds)
    others = [np.flatnonzero(kinds == 0), found.others, found.record[no_step]]
    found = found.of(~no_step)
    rows: dict[int, dict[str, Any]] = {}
    updates: dict[str, tuple[int, str | None]] = {}  # key -> last record that says so, value
    for index in np.unique(np.concatenate(others)).tolist():
        body = data[starts[index] : ends[index]]
        if CLOCK.fullmatch(body):
            continue
        record = pb.Record()  # type: ignore[attr-defined]
        record.ParseFromString(body)
        _take(run, record, index, rows, updates)
    kind_of_item = kinds[found.record]
    _add_last(updates, found.of(kind_of_item == SUMMARY))
    summary = {key: text for key, (_, text) in updates.items() if text is not None}
    run.summary = _without_internal((key, _value(text)) for key, text in summary.items())
    return _history(found.of(kind_of_item == HISTORY), rows)


def _without_step(found: Items, kinds: Ints) -> NDArray[np.bool_]:
    """Which items belong to a history record that has its step elsewhere than among them."""
    has_step = np.zeros(len(kinds), dtype=bool)
    if "_step" in found.keys:
        has_step[found.record[found.key == found.keys.index("_step")]] = True
    return (kinds[found.record] == HISTORY) & ~has_step[found.record]


def _take(
    run: Fragment,
    record: Any,
    index: int,
    rows: dict[int, dict[str, Any]],
    updates: dict[str, tuple[int, str | None]],
) -> None:
    """Add what one record says to the run; history goes to `rows` and summary to `updates`."""
    kind = record.WhichOneof("record_type")
    if kind == "history":
        row = dict(_items(record.history.item))
        row.setdefault("_step", record.history.step.num)
        rows[index] = row
    elif kind == "summary":
        for item in record.summary.update:
            updates[_key(item)] = index, item.value_json
        for item in record.summary.remove:
            updates[_key(item)] = index, None
    elif kind == "run":
        run.identified = True
        run.run_id, run.group = record.run.run_id, record.run.run_group
        run.started = record.run.start_time.ToMicroseconds() / 1e6
        run.config |= _config(record.run.config)
    elif kind == "config":
        run.config |= _config(record.config)
    elif kind == "exit":
        run.exit_code = record.exit.exit_code


def _add_last(updates: dict[str, tuple[int, str | None]], found: Items) -> None:
    """Add the last value of every key, unless a later record has spoken already."""
    for code, key in enumerate(found.keys):
        which = np.flatnonzero(found.key == code)
        if not len(which):
            continue
        item = int(which[-1])
        index = int(found.record[item])
        if key not in updates or updates[key][0] < index:
            updates[key] = index, found.text(item)


def _history(found: Items, rows: dict[int, dict[str, Any]]) -> pa.Table:
    """History records of the usual layout, and those of others, as one table."""
    values: Any
    try:
        values = found.numbers()
    except ValueError:  # a text among them
        values = np.array([_value(found.text(item)) for item in range(len(found.key))], object)
    indices, place = np.unique(found.record, return_inverse=True)
    columns = {}
    for code, key in enumerate(found.keys):
        which = np.flatnonzero(found.key == code)
        if len(which):  # none of a key of the summary alone
            columns[key] = np.full(len(indices), np.nan, values.dtype)
            columns[key][place[which]] = values[which]
    usual = pd.DataFrame(columns, index=indices)
    others = pd.DataFrame.from_dict(rows, orient="index", dtype=object)
    return _table(pd.concat([usual, others]).sort_index() if rows else usual)


def history_table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """History rows, each with its `_step`, as `Fragment.history` has them."""
    return _table(pd.DataFrame(list(rows), dtype=object))


def _table(frame: pd.DataFrame) -> pa.Table:
    """Columns under their keys; W&B's own keys are left out, and texts are JSON."""
    steps = frame["_step"] if "_step" in frame else pd.Series(dtype=float)
    table = {STEP: pa.array(steps.astype(float).astype(np.int64))}
    for key in sorted(key for key in map(str, frame) if not key.startswith("_")):
        values = frame[key]
        if values.dtype != object or all(isinstance(value, int | float) for value in values):
            table[key] = pa.array(values.to_numpy(float))  # NaN stays NaN
        else:
            texts = [None if v is None or v != v else json.dumps(v) for v in values]
            table[key] = pa.array(texts, pa.string())
    return pa.table(table)


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
