"""`launch.measured` on sweeps of a second: the order of the stages, what a second call does, how it ends."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch import measured
from launch.stages import STAGES, Stage
from launch.sweep import Sweep, standings
from zo.run.lock import held

ROOT = Path(__file__).parents[2]


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


def test_two_calls_do_not_disturb_each_other(small, call, tmp_path, capsys):
    (tmp_path / "out" / ".measured").mkdir(parents=True)
    with held(tmp_path / "out" / ".measured"):
        assert call(small("one")) == 2
    assert str(tmp_path / "out" / ".measured") in capsys.readouterr().err


def test_what_this_machine_cannot_make_is_named(small, call, monkeypatch, capsys):
    monkeypatch.setitem(measured.STAGES[0].missing.__globals__["INSTALL"], "no_such", "no-such")
    lacks, made = small("lacks", needs=("no_such",)), small("made", "seed=0")
    assert call(Stage("on_a_gpu", ()), lacks, made, arguments=["--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "lacks is left out: no_such not installed: `pip install no-such`",
        "made: 2 missing",
    ]
    assert call(Stage("g", ()), arguments=["--only", "g"]) == 2
    assert capsys.readouterr().out == "g is left out: no GPU that PyTorch can use here\n"


@pytest.mark.process
def test_told_to_stop_it_saves(grid, tmp_path):
    long = [*grid, "optimizer=mezo", "steps=100000", "eval_every=100000"]
    program = (
        "import sys; from launch import measured; from launch.stages import Stage\n"
        "measured.STAGES = [Stage(n, (*sys.argv[2:], o), gpu=False) for n, o in (('a', 'seed=0'), ('b', 'seed=1'))]\n"
        "sys.exit(measured.main(['--out', sys.argv[1]]))"
    )
    (run,) = Sweep.of([*long, "seed=0"]).runs
    command = [sys.executable, "-c", program, str(tmp_path / "out"), *long]
    process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not (run.directory / "metrics.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert standings([run])[run.run_id].state == "interrupted"
    assert not Sweep.of([*long, "seed=1"]).runs[0].directory.exists()


def test_the_stages_are_sweeps_and_the_timed_ones_come_first():
    sweeps = {path.stem for path in (ROOT / "conf" / "sweep").glob("*.yaml")}
    assert {stage.overrides[0].removeprefix("sweep=") for stage in STAGES} <= sweeps
    assert [stage.alone for stage in STAGES] == sorted((s.alone for s in STAGES), reverse=True)


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
