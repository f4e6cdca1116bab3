import math
from pathlib import Path

import pytest

from analysis.logs.run_file import BLOCK_BYTES, read_run_file
from tests.analysis.make_logs import config, cut_copy, history, summary, write_run

ACCURACIES = [0.5, 0.6, 0.55]


@pytest.fixture(scope="module")
def long_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_reads_what_was_logged(long_file: Path) -> None:
    run = read_run_file(long_file)
    assert (run.run_id, run.group, run.exit_code, run.torn_at) == ("abc", "quickstart", 0, None)
    assert run.identified
    rows = run.history.to_pylist()
    assert [row["step"] for row in rows] == list(range(300))
    for row in rows:
        step = row["step"]
        if step == 7:
            assert math.isnan(row["train/loss"])
        else:
            assert row["train/loss"] == 1 / (step + 3)
        assert [row[f"optim/s{i}"] for i in range(8)] == [step * i for i in range(8)]
    assert run.config["optimizer.name"] == "mezo"
    assert run.config["lr"] == 1e-4
    assert run.config["task.label_words"] == ["terrible", "great"]
    assert run.config["provenance.versions.torch"] == "2.9.0"
    assert run.summary["best/test_predictions"].startswith("010101")  # text, not a number
    assert run.summary["best/step"] == 10
    assert run.summary["mem/peak_gib"] is None
    assert not [key for key in {**run.config, **run.summary} if key.startswith("_")]


def test_any_cut_is_readable(tmp_path: Path) -> None:
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


def test_damaged_byte_ends_the_reading(long_file: Path, tmp_path: Path) -> None:
    data = bytearray(long_file.read_bytes())
    data[len(data) // 2] ^= 1
    path = tmp_path / "run-abc.wandb"
    path.write_bytes(data)
    run = read_run_file(path)
    assert run.torn_at is not None
    assert run.torn_at < len(data) // 2 + 7
    assert 0 < run.history.num_rows < 300
