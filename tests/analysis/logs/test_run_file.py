"""Run files as W&B writes them, cut and damaged, and records in layouts that its client does not write today."""

import json
import math
import struct
import zlib
from typing import Any

import pytest
from wandb.proto import wandb_internal_pb2 as pb

from analysis.logs.run_file import BLOCK_BYTES, FILE_HEADER, WHOLE, read_run_file
from tests.analysis.make_logs import config, cut_copy, history, summary, write_run

ACCURACIES = [0.5, 0.6, 0.55]


@pytest.fixture(scope="module")
def long_file(tmp_path_factory):
    """300 rows over several 32 KiB blocks."""
    rows = [
        {"step": step, "train/loss": 1 / (step + 3), **{f"optim/s{i}": step * i for i in range(8)}}
        for step in range(300)
    ]
    rows[7]["train/loss"] = float("nan")
    final = summary(2, ACCURACIES, 12, **{"mem/peak_gib": None})
    path = write_run(tmp_path_factory.mktemp("long"), "abc", config("mezo", 1e-4), rows, final)
    assert path.stat().st_size > 3 * BLOCK_BYTES
    return path


def test_reads_what_was_logged(long_file):
    run = read_run_file(long_file)
    assert (run.run_id, run.group, run.exit_code, run.torn_at) == ("abc", "quickstart", 0, None)
    rows = run.history.to_pylist()
    assert math.isnan(rows.pop(7)["train/loss"])
    steps = [step for step in range(300) if step != 7]
    for step, row in zip(steps, rows, strict=True):
        assert (row["step"], row["train/loss"]) == (step, 1 / (step + 3))
        assert [row[f"optim/s{i}"] for i in range(8)] == [step * i for i in range(8)]
    assert run.summary["best/test_predictions"].startswith("010101")  # text, not a number
    assert run.summary["mem/peak_gib"] is None
    assert not [key for key in {**run.config, **run.summary} if key.startswith("_")]


def test_any_cut_is_readable(tmp_path):
    """Wherever the file ends: no exception, rows only grow, and up to `torn_at` the file is whole."""
    settings = {"optimizer": {"name": "mezo"}}
    path = write_run(tmp_path, "cut", settings, history(2, ACCURACIES)[:4], {"run/steps": 3})
    size = path.stat().st_size
    counts = []
    for end in [*range(0, size, 29), size]:
        run = read_run_file(cut_copy(path, tmp_path / "cut", end))
        counts.append(run.history.num_rows)
        if run.torn_at is not None and end >= 7:
            whole = read_run_file(cut_copy(path, tmp_path / "cut", run.torn_at))
            assert whole.torn_at is None
            assert str(whole.history.to_pylist()) == str(run.history.to_pylist())
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2, 3, 4}


def test_damaged_byte_ends_the_reading(long_file, tmp_path):
    data = bytearray(long_file.read_bytes())
    data[len(data) // 2] ^= 1
    path = tmp_path / "run-abc.wandb"
    path.write_bytes(data)
    run = read_run_file(path)
    assert run.torn_at < len(data) // 2 + 7
    assert 0 < run.history.num_rows < 300


def record(kind: str, values: dict[str, Any], nested: bool = True) -> Any:
    made = pb.Record()  # type: ignore[attr-defined]
    target = made.history.item if kind == "history" else made.summary.update
    for key, value in values.items():
        name = {"nested_key": [key]} if nested else {"key": key}
        target.add(value_json=json.dumps(value), **name)
    return made


def test_layouts_that_the_client_does_not_write_today(tmp_path):
    """The last word on a key of the summary counts, and a step is a field or an item."""
    removal = pb.Record()  # type: ignore[attr-defined]
    removal.summary.remove.add().nested_key.append("b")
    two_parts = record("summary", {"a": 6, "c": 7})
    two_parts.summary.update[0].nested_key.append("d")
    field = record("history", {"é": float("inf")}, nested=False)
    field.history.step.num = 7
    records = [
        two_parts,  # a.d and c, of which later records have a, c and d
        record("summary", {"a": 1, "b": 2, "c": "x" * 300}),
        record("summary", {"a": 3}),
        record("summary", {"d": 4, "a": 5}, nested=False),
        removal,
        record("summary", {"c": "z" * 300}),
        record("history", {"_step": 3}),
        field,
    ]
    path, kind, data = tmp_path / "run-x.wandb", bytes([WHOLE]), FILE_HEADER
    for body in (made.SerializeToString() for made in records):
        data += struct.pack("<IHB", zlib.crc32(kind + body), len(body), WHOLE) + body
    path.write_bytes(data)
    run = read_run_file(path)
    assert run.summary == {"a": 5, "c": "z" * 300, "d": 4, "a.d": 6}
    assert run.history.to_pydict()["step"] == [3, 7]
    assert run.history.to_pydict()["é"][1] == float("inf")
