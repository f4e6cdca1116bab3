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
from wandb.proto import wandb_internal_pb2 as pb

from analysis.logs.fragments import Fragment
from analysis.logs.history import STEP

FILE_HEADER = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
BLOCK_BYTES = 32768
CHUNK_HEADER = struct.Struct("<IHB")  # crc32 of type and body, length of body, type
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4  # chunk types; 0 is the padding at the end of a block


class LogError(ValueError):
    """What the logs hold cannot be used; the message is one sentence for the user.

    Whatever reads, chooses or compares runs may raise it; `analysis.report.command.main` prints it.
    """


def read_run_file(path: str | Path) -> Fragment:
    """Read a run file as far as it is readable: a fragment of a run, if the run was resumed."""
    data = Path(path).read_bytes()
    run = Fragment(str(path), Path(path).stem.removeprefix("run-"))
    if len(data) < len(FILE_HEADER) and FILE_HEADER.startswith(data):
        run.torn_at = len(data)  # killed before the first flush
        return run
    if not data.startswith(FILE_HEADER):
        raise LogError(f"{path} is not a .wandb run file")
    bodies, run.torn_at = _bodies(data)
    _take_records(run, bodies)
    return run


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Join the keys of nested mappings by dots, without W&B's own, which begin with an underscore.

    An empty mapping stays as a value.
    """
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return {key: value for key, value in flat.items() if not key.startswith("_")}


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
        if len(body) < length or zlib.crc32(body, zlib.crc32(bytes([kind]))) != checksum:
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


def _take_records(run: Fragment, bodies: Iterable[bytes]) -> None:
    """Add what the records say to the run."""
    rows: list[dict[str, Any]] = []
    last: dict[str, str] = {}  # word on every key of the summary
    for body in bodies:
        record = pb.Record.FromString(body)  # type: ignore[attr-defined]
        kind = record.WhichOneof("record_type")
        if kind == "history":
            rows.append({"_step": record.history.step.num, **_values(record.history.item)})
        elif kind == "summary":
            last |= {_key(item): item.value_json for item in record.summary.update}
            for item in record.summary.remove:
                last.pop(_key(item), None)
        elif kind == "run":
            run.identified = True
            run.wandb_id, run.group = record.run.run_id, record.run.run_group
            run.started = record.run.start_time.ToMicroseconds() / 1e6
            run.config |= flatten(_values(record.run.config.update))
            run.run_id = run.config.get("provenance.run_id", run.wandb_id)
        elif kind == "config":
            run.config |= flatten(_values(record.config.update))
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    run.summary = flatten({key: json.loads(text) for key, text in last.items()})
    run.history = history_table(rows)


def history_table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """History rows, each with its `_step`, as `Fragment.history` has them: no W&B's own keys, texts as JSON."""
    frame = pd.DataFrame(list(rows))
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


def _values(items: Sequence[Any]) -> dict[str, Any]:
    texts = ",".join([item.value_json for item in items])
    return dict(zip(map(_key, items), json.loads(f"[{texts}]"), strict=True))


def _key(item: Any) -> str:
    nested = item.nested_key
    return nested[0] if len(nested) == 1 else ".".join(nested) or item.key
