"""Read one `.wandb` run file, the transaction log that W&B writes on this machine, without network.

The file is a LevelDB log: a 7-byte header, then 32 KiB blocks of checksummed chunks whose joined
bodies are protobuf `Record`s. A run that was killed leaves a torn tail, a bad disk a wrong checksum; what precedes
it is kept, `Fragment.torn_at` says where the reading stopped, and what follows it is not read: behind a lost
record nobody knows what else is missing.

Read here, since wandb 0.31 has no reader in Python any more (`sdk.internal.datastore` is gone).
"""

import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from wandb.proto import wandb_internal_pb2 as pb

from analysis.logs.fragments import Fragment, with_history
from analysis.logs.history import STEP

FILE_HEADER = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
BLOCK_BYTES = 32768
CHUNK_HEADER = struct.Struct("<IHB")  # crc32 of type and body, length of body, type
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4  # chunk types; 0 is the padding at the end of a block
KIND_CHECKSUM = [zlib.crc32(bytes([kind])) for kind in range(256)]  # of a chunk's type alone


class LogError(ValueError):
    """What the logs hold cannot be used; the message is one sentence for the user.

    Whatever reads, chooses or compares runs may raise it; `analysis.report.command.main` prints it.
    """


def _merged_record() -> Any:
    """W&B's class `Record` with other labels: the items of a history or summary are one, whose fields are lists.

    Protobuf merges a message that occurs several times where one is declared, and joins its repeated fields.
    An object per item would take most of the time of a reading.
    """
    pool = DescriptorPool()
    optional, repeated = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED
    labels = {"item": optional, "update": optional, "key": repeated, "value_json": repeated}

    def add(file: Any) -> None:
        for needed in file.dependencies:
            add(needed)
        copy = FileDescriptorProto()
        file.CopyToProto(copy)
        for message in copy.message_type:
            for field in message.field:
                if message.name.startswith(("History", "Summary")):
                    field.label = labels.get(field.name, field.label)
        pool.Add(copy)

    add(pb.DESCRIPTOR)
    return GetMessageClass(pool.FindMessageTypeByName("wandb_internal.Record"))


MERGED = _merged_record()


def read_run_file(path: Path) -> Fragment:
    """Read a run file as far as it is readable: a fragment of a run, if the run was resumed."""
    data = path.read_bytes()
    run = Fragment(str(path), path.stem.removeprefix("run-"))
    if len(data) < len(FILE_HEADER) and FILE_HEADER.startswith(data):
        run.torn_at = len(data)  # killed before the first flush
        return run
    if not data.startswith(FILE_HEADER):
        raise LogError(f"{path} is not a .wandb run file")
    bodies, run.torn_at = _bodies(data)
    return with_history(run, _take_records(run, bodies))


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Join the keys of nested mappings by dots; an empty mapping stays as a value."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _bodies(data: bytes) -> tuple[list[bytes], int | None]:
    """The bodies of all records, and the byte where the log stops early."""
    view, total, position = memoryview(data), len(data), len(FILE_HEADER)
    header, record_start, block_end = CHUNK_HEADER.size, position, BLOCK_BYTES
    bodies: list[bytes] = []
    parts: list[memoryview] = []  # of a record that may span blocks
    while position < total:
        start = position + header
        if start > block_end:  # the rest of a block is too small for a chunk
            position, block_end = block_end, block_end + BLOCK_BYTES
            continue
        if start > total:
            break
        checksum, length, kind = CHUNK_HEADER.unpack_from(data, position)
        if kind == 0 and length == 0 and checksum == 0:
            position, block_end = block_end, block_end + BLOCK_BYTES
            continue
        body = view[start : start + length]
        if len(body) < length or zlib.crc32(body, KIND_CHECKSUM[kind]) != checksum:
            break
        if kind in (WHOLE, FIRST):
            parts, record_start = [], position
        parts.append(body)
        position = start + length
        if kind in (WHOLE, LAST):
            bodies.append(b"".join(parts))
            parts = []
    whole = position >= total and not parts
    return bodies, None if whole else record_start if parts else position


def _take_records(run: Fragment, bodies: Iterable[bytes]) -> pa.Table:
    """Add what the records say to the run; its history."""
    keys: list[str] = []  # of all rows: a list of each would keep the garbage collector busy
    texts: list[str] = []
    counts: list[int] = []  # of the keys of each row
    steps: list[int] = []
    summaries: list[bytes] = []
    for body in bodies:
        record = MERGED.FromString(body)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            names, values = record.history.item.nested_key[:], record.history.item.value_json[:]
            if record.history.item.key or len(names) != len(values):
                exact = pb.Record.FromString(body).history.item  # type: ignore[attr-defined]
                names, values = [_key(item) for item in exact], [item.value_json for item in exact]
            keys += names
            texts += values
            counts.append(len(names))
            steps.append(record.history.step.num)
        elif kind == "summary":
            summaries.append(body)
        elif kind == "run":
            run.identified = True
            run.wandb_id, run.group = record.run.run_id, record.run.run_group
            run.started = record.run.start_time.ToMicroseconds() / 1e6
            run.config |= _config(record.run.config)
            run.run_id = run.config.get("provenance.run_id", run.wandb_id)
        elif kind == "config":
            run.config |= _config(record.config)
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    run.summary = _summary(summaries)
    return _history(keys, texts, counts, steps)


def _summary(bodies: Sequence[bytes]) -> dict[str, Any]:
    """The last word on every key. There is a record or two of every step: from the end, most say nothing new."""
    last: dict[str, str | None] = {}  # None for a removed key
    for body in reversed(bodies):
        summary = MERGED.FromString(body).summary
        plain, nested = summary.update.key[:], summary.update.nested_key[:]
        count = len(summary.update.value_json)
        if count == len(plain) + 1:
            nested = [".".join(nested)]
        names = {*plain, *nested} if count == len(plain) + len(nested) else None
        if names is None or summary.remove or not last.keys() >= names:
            exact = pb.Record.FromString(body).summary  # type: ignore[attr-defined]
            removed = {_key(item): None for item in exact.remove}
            last = {_key(item): item.value_json for item in exact.update} | removed | last
    return _without_internal((k, json.loads(text)) for k, text in last.items() if text is not None)


def _history(
    keys: Sequence[str], texts: Sequence[str], counts: Sequence[int], steps: Sequence[int]
) -> pa.Table:
    """History rows as a table."""
    try:
        values = pc.cast(pa.array(texts, pa.string()), pa.float64()).to_numpy()
    except pa.ArrowInvalid:
        values = pd.Series([json.loads(text) for text in texts], dtype=object).to_numpy()
    columns: dict[str, Any] = {"_step": np.array(steps, values.dtype)}
    rows = np.repeat(np.arange(len(counts)), counts)
    codes, names = pd.factorize(np.array(keys, dtype=object))
    for code, key in enumerate(names):
        here = codes == code
        column = columns.setdefault(key, np.full(len(counts), np.nan, values.dtype))
        column[rows[here]] = values[here]
    return _table(pd.DataFrame(columns, dtype=values.dtype))


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
    items = ((_key(item), json.loads(item.value_json)) for item in record.update)
    return flatten(_without_internal(items))


def _key(item: Any) -> str:
    nested = item.nested_key
    return item.key if not nested else nested[0] if len(nested) == 1 else ".".join(nested)


def _without_internal(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Drop W&B's own keys, which begin with an underscore."""
    return {key: value for key, value in items if not key.startswith("_")}
