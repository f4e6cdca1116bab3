"""The reading by a regular expression against W&B's protobuf classes, on layouts usual and unusual."""

import json
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wandb.proto import wandb_internal_pb2 as pb

from analysis.logs.run_file import BLOCK_BYTES, FILE_HEADER, read_run_file

KEYS = st.sampled_from(["train/loss", "optim/slope", "a", "k" * 126, "k" * 127, "k" * 128, "é"])
NUMBERS = st.one_of(
    st.floats(),
    st.integers(-(2**53), 2**53),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.1 + 0.2]),
)
ROWS = st.lists(st.dictionaries(KEYS, NUMBERS, max_size=6), max_size=12)


def framed(bodies: list[bytes]) -> bytes:
    """A log of the records, each split where a block ends."""
    log = bytearray(FILE_HEADER)
    for body in bodies:
        first = True
        while first or body:
            left = BLOCK_BYTES - len(log) % BLOCK_BYTES
            if left < 7:
                log += b"\0" * left
                continue
            part, body = body[: left - 7], body[left - 7 :]
            kind = (1 if not body else 2) if first else (4 if not body else 3)
            log += (
                struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind)
                + part
            )
            first = False
    return bytes(log)


def record(kind: str, number: int, values: dict[str, Any], nested: bool = True) -> Any:
    made = pb.Record(num=number)  # type: ignore[attr-defined]
    target = made.history.item if kind == "history" else made.summary.update
    for key, value in values.items():
        item = target.add(value_json=json.dumps(value))
        if nested:
            item.nested_key.append(key)
        else:
            item.key = key
    return made


def write(path: Path, records: list[Any]) -> Path:
    path.write_bytes(framed([made.SerializeToString() for made in records]))
    return path


def same(one: Any, other: Any) -> bool:
    return one == other or (one != one and other != other)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, start=st.integers(0, 2**28), nested=st.booleans(), step_field=st.booleans())
def test_history_as_protobuf_has_it(
    tmp_path_factory: pytest.TempPathFactory, rows: Any, start: int, nested: bool, step_field: bool
) -> None:
    records = []
    for i, row in enumerate(rows):
        values = row if step_field and i % 2 else {"_step": i, **row}
        made = record("history", start + i, values, nested)
        if step_field:
            made.history.step.num = i
        records.append(made)
    run = read_run_file(write(tmp_path_factory.mktemp("items") / "run-x.wandb", records))
    found = run.history.to_pylist()
    assert [row["step"] for row in found] == list(range(len(rows)))
    for got, row in zip(found, rows, strict=True):
        for key in {*row, *(k for k in got if k != "step")}:
            value = row.get(key, math.nan)
            assert same(got[key], float(value)), (key, got[key], value)


def test_the_last_word_of_a_summary_counts(tmp_path: Path) -> None:
    """Usual records and others in turn: a length of two bytes, and a key of two parts, are not usual."""
    removal = pb.Record(num=5)  # type: ignore[attr-defined]
    removal.summary.remove.add().nested_key.append("b")
    two_parts = record("summary", 7, {"e": 6})
    two_parts.summary.update[0].nested_key.append("f")
    records = [
        record("summary", 1, {"a": 1, "b": 2, "c": "x" * 300}),
        record("summary", 2, {"a": 3}),
        record("summary", 3, {"a": "y" * 300}),
        record("summary", 4, {"d": 4, "a": 5}),
        removal,
        record("summary", 6, {"c": "z" * 300}),
        two_parts,
    ]
    run = read_run_file(write(tmp_path / "run-x.wandb", records))
    assert run.summary == {"a": 5, "c": "z" * 300, "d": 4, "e.f": 6}
