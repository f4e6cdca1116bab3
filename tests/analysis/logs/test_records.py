"""Records in unusual layouts, which W&B's own client does not write today: removals, plain keys, keys of two parts."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2 as pb

from analysis.logs.run_file import FILE_HEADER, WHOLE, read_run_file


def record(kind: str, values: dict[str, Any], nested: bool = True) -> Any:
    made = pb.Record()  # type: ignore[attr-defined]
    target = made.history.item if kind == "history" else made.summary.update
    for key, value in values.items():
        item = target.add(value_json=json.dumps(value))
        if nested:
            item.nested_key.append(key)
        else:
            item.key = key
    return made


def write(path: Path, records: list[Any]) -> Path:
    """A log of records that all fit into one block."""
    bodies = [made.SerializeToString() for made in records]
    kind = bytes([WHOLE])
    chunks = [struct.pack("<IHB", zlib.crc32(kind + b), len(b), WHOLE) + b for b in bodies]
    path.write_bytes(FILE_HEADER + b"".join(chunks))
    return path


def test_the_last_word_of_a_summary_counts(tmp_path: Path) -> None:
    removal = pb.Record()  # type: ignore[attr-defined]
    removal.summary.remove.add().nested_key.append("b")
    two_parts = record("summary", {"a": 6, "c": 7})
    two_parts.summary.update[0].nested_key.append("d")
    records = [
        two_parts,  # a.d and c, of which later records have a, c and d
        record("summary", {"a": 1, "b": 2, "c": "x" * 300}),
        record("summary", {"a": 3}),
        record("summary", {"d": 4, "a": 5}, nested=False),
        removal,
        record("summary", {"c": "z" * 300}),
    ]
    run = read_run_file(write(tmp_path / "run-x.wandb", records))
    assert run.summary == {"a": 5, "c": "z" * 300, "d": 4, "a.d": 6}


def test_a_step_is_a_field_or_an_item(tmp_path: Path) -> None:
    field = record("history", {"é": float("inf")}, nested=False)
    field.history.step.num = 7
    run = read_run_file(write(tmp_path / "run-x.wandb", [record("history", {"_step": 3}), field]))
    assert run.history.to_pydict()["step"] == [3, 7]
    assert run.history.to_pydict()["é"][1] == float("inf")
