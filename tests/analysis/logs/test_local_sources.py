"""Run files read once, kept, and read again only when they change."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from analysis.logs import local
from analysis.logs.sources import load


@pytest.fixture
def read_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are really read, as they are."""
    paths: list[str] = []
    original = local.read_run_file

    def counted(path: Path):
        paths.append(path.name)
        return original(path)

    monkeypatch.setattr(local, "read_run_file", counted)
    return paths


def test_kept_and_fresh_are_the_same(logs: Path, tmp_path: Path, read_paths: list[str]) -> None:
    fresh = load([logs], cache_dir=None)
    first = load([logs], cache_dir=tmp_path / "kept")
    read_paths.clear()
    again = load([logs], cache_dir=tmp_path / "kept")
    assert read_paths == []
    for frames in (first, again):
        pd.testing.assert_frame_equal(frames.runs, fresh.runs)
        for run_id in fresh.history.run_ids:
            kept, read = (one.history.one(run_id) for one in (frames, fresh))
            pd.testing.assert_frame_equal(kept, read)


def test_only_changed_files_are_read(logs: Path, tmp_path: Path, read_paths: list[str]) -> None:
    kept = tmp_path / "kept"
    load([logs], cache_dir=kept)
    (path,) = logs.glob("zero/wandb/offline-run-*/run-zero.wandb")
    path.write_bytes(path.read_bytes()[:-20])
    shutil.rmtree(logs / "mezo-1")
    read_paths.clear()
    frames = load([logs], cache_dir=kept)
    assert read_paths == ["run-zero.wandb"]
    runs = frames.runs.set_index("run_id")
    assert runs.loc["zero", "torn"]
    assert "mezo-1" not in runs.index
    assert len(list(kept.rglob("*.parquet"))) == 5  # what was kept of a removed file is removed
