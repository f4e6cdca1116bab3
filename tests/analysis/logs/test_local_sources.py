"""Run files read once, kept, and read again only when they change."""

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from analysis.logs import local
from analysis.logs.frames import merge
from analysis.logs.local import find_run_files
from analysis.logs.run_file import LogError
from analysis.logs.sources import load, split
from tests.analysis.make_logs import config, cut_copy, history, summary, write_run


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
        pd.testing.assert_frame_equal(
            frames.history.of(frames.history.run_ids), fresh.history.of(fresh.history.run_ids)
        )


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


def test_same_size_another_time(logs: Path, tmp_path: Path, read_paths: list[str]) -> None:
    load([logs], cache_dir=tmp_path / "kept")
    (path,) = logs.glob("zero/wandb/offline-run-*/run-zero.wandb")
    os.utime(path, ns=(1, 1))
    read_paths.clear()
    load([logs], cache_dir=tmp_path / "kept")
    assert read_paths == ["run-zero.wandb"]


def test_damaged_cache_is_read_anew(logs: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    load([logs], cache_dir=kept)
    for path in kept.rglob("*.parquet"):
        path.write_bytes(path.read_bytes()[:-9])
    assert len(load([logs], cache_dir=kept).runs) == 6


def test_processes_read_the_same(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = load([logs], cache_dir=None, jobs=1)
    monkeypatch.setattr(local, "PARALLEL_BYTES", 0)
    together = load([logs], cache_dir=tmp_path / "kept", jobs=2)
    pd.testing.assert_frame_equal(alone.runs, together.runs)
    (path,) = logs.glob("zero/wandb/offline-run-*/run-zero.wandb")
    path.write_bytes(b"garbage")
    with pytest.raises(LogError, match=r"run-zero\.wandb is not a \.wandb run file"):
        load([logs], cache_dir=tmp_path / "other", jobs=2)


def test_a_flipped_bit_loses_what_follows_and_says_so(logs: Path) -> None:
    (path,) = logs.glob("mezo-4/wandb/offline-run-*/run-mezo-4.wandb")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    frames = load([logs], cache_dir=None)
    run = frames.runs.set_index("run_id").loc["mezo-4"]
    assert (run["torn"], run["status"]) == (True, "unfinished")
    steps = list(frames.history.one("mezo-4")["step"])
    assert steps == list(range(len(steps)))
    assert 5 < len(steps) < 40


def test_a_copied_file_counts_once(logs: Path, tmp_path: Path) -> None:
    """Also if the copy is torn."""
    (path,) = logs.glob("mezo-4/wandb/offline-run-*/run-mezo-4.wandb")
    cut_copy(path, tmp_path / "backup", path.stat().st_size // 2)
    for order in ([logs, tmp_path / "backup"], [tmp_path / "backup", logs]):
        run = load(order, cache_dir=None).runs.set_index("run_id").loc["mezo-4"]
        assert (run["fragments"], run["duplicates"], run["rows"]) == (1, 0, 41)
        assert (run["status"], run["torn"]) == ("finished", False)


def test_two_endings_with_different_results_are_duplicates(logs: Path, tmp_path: Path) -> None:
    accuracies = [0.5, 0.6, 0.75, 0.7, 0.75]
    rows = history(2, accuracies, 1)
    write_run(tmp_path / "b", "mezo-4", config("mezo", 1e-4), rows, summary(2, accuracies, 17))
    frames = load([logs, tmp_path / "b"], cache_dir=None)
    run = frames.runs.set_index("run_id").loc["mezo-4"]
    assert (run["fragments"], run["duplicates"], run["rows"]) == (2, 0, 41)  # the same result twice
    write_run(tmp_path / "c", "mezo-4", config("mezo", 1e-4), rows, summary(2, accuracies, 12))
    frames = load([logs, tmp_path / "c"], cache_dir=None)
    assert frames.runs.set_index("run_id").loc["mezo-4", "duplicates"] == 2


def test_history_gives_what_is_asked(quickstart: Path) -> None:
    history_of = merge(local.read([quickstart], None)).history
    frame = history_of.of(["mezo-4", "nobody", "bszo-4"], ["train/loss", "no/such"])
    assert list(frame.columns) == ["run_id", "step", "train/loss", "no/such"]
    assert list(frame["run_id"].unique()) == ["bszo-4", "mezo-4"]
    assert frame["step"].dtype == "int64"
    assert frame["no/such"].isna().all()
    assert list(history_of.of([], ["train/loss"]).columns) == ["run_id", "step", "train/loss"]


def test_which_source_is_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert split(["a/b", "wandb:a/b", "team/zo"]) == ([Path("a/b")], ["a/b", "team/zo"])
    for wrong in ("nowhere", "./a/c", "a/b/c"):
        with pytest.raises(LogError, match=f"there is no directory {wrong}"):
            split([wrong])
    assert find_run_files([tmp_path]) == []
