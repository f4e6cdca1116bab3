"""`launch.measured` on sweeps of a second: the order of the stages, what a second call does, how it ends."""

import json

import pytest

from launch import measured
from launch.stages import Stage
from launch.sweep import Sweep, standings


def runs_of(stage):
    return Sweep.of(stage.overrides).runs


def states(*stages):
    return [s.state for stage in stages for s in standings(runs_of(stage)).values()]


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Returns a function that runs the command on some stages."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*stages, arguments=()):
        monkeypatch.setattr(measured, "STAGES", stages)
        return measured.main(["--out", str(tmp_path / "out"), *arguments])

    return run


@pytest.fixture
def small(grid):
    """Returns a function that makes a stage of runs of two steps on the processor."""
    return lambda name, *overrides, **more: Stage(name, (*grid, *overrides), gpu=False, **more)


@pytest.mark.process
def test_the_time_is_up_then_all_is_made_then_nothing_is_left(small, call, capsys):
    first, second = small("first", "seed=0", "optimizer=bszo"), small("second", "seed=1")
    assert call(first, second, arguments=["--minutes", "0.001"]) == 3
    assert "no time left for first" in capsys.readouterr().out
    assert states(first, second) == ["missing"] * 3
    assert call(first, second) == 0
    assert states(first, second) == ["finished"] * 3
    given = [
        [json.loads((run.directory / "job.json").read_text())["when"] for run in runs_of(stage)]
        for stage in (first, second)
    ]
    assert max(given[0]) < min(given[1])
    assert call(first, second) == 0
    for run in [*runs_of(first), *runs_of(second)]:
        assert len((run.directory / "attempts.jsonl").read_text().splitlines()) == 1


@pytest.mark.process
def test_a_failed_run_and_a_stage_without_weights_do_not_end_the_others(small, call, capsys):
    stage = small("one", "seed=0")
    _, bad = runs_of(stage)
    (bad.directory / "predictions.json").mkdir(parents=True)  # a file cannot be written there
    lost = small("lost", "model.path=package:no_such_package/x.gguf")
    assert call(lost, stage) == 1
    assert sorted(states(stage)) == ["failed", "finished"]
    told = capsys.readouterr()
    assert "no_such_package" in told.err
    assert "failed: IsADirectoryError" in told.out


def test_runs_share_a_gpu_by_cores_and_memory_unless_they_are_timed(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(measured, "_memory_gib", lambda: 10.0)
    packed = Stage("p", ())
    assert measured.slots(Stage("t", (), alone=True), ["0"], 4) == 1
    assert measured.slots(packed, ["0"], None) == 3
    assert measured.slots(packed, ["0"], 5) == 5
    monkeypatch.setattr(measured, "_memory_gib", lambda: 139.0)
    assert measured.slots(packed, ["0", "1"], None) == 8
    assert measured.slots(Stage("c", (), gpu=False), [], None) == 16
