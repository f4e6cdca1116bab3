"""`launch.measured` for real, on sweeps of a second: what is made in which order, what a second call does, its end."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.measured import __main__ as measured
from launch.measured import stages
from launch.measured.driver import Driver, Options
from launch.measured.machine import Machine
from launch.measured.stages import STAGES, Stage, for_machine, lacking
from launch.sweep import Sweep, standings
from zo.run.lock import held

ROOT = Path(__file__).parents[2]
TWO_CORES = Machine((), 0.0, 2)


@pytest.fixture
def small(grid):
    """Returns a function that makes a stage of runs of two steps on the processor."""

    def make(name, *overrides, **more):
        return Stage(name, (*grid, *overrides), gpu=False, **more)

    return make


@pytest.fixture
def call(tmp_path):
    """Returns a function that makes stages within minutes: exit status and the analyses that were asked for."""

    def make(chosen, minutes=5.0, **more):
        options = Options(minutes, None, False, tmp_path / "out", tmp_path / "results")
        asked = []
        driver = Driver(chosen, TWO_CORES, options, lambda *a: asked.append(a) or [], **more)
        return driver.run(), asked

    return make


def runs_of(stage):
    return Sweep.of(stage.overrides).runs


def states(stage):
    runs = runs_of(stage)
    found = standings(runs)
    return [found[run.run_id].state for run in runs]


def attempts(stage):
    return [
        len((run.directory / "attempts.jsonl").read_text().splitlines()) for run in runs_of(stage)
    ]


def test_time_up_then_complete_then_nothing_to_do(small, call, capsys):
    first, second = small("first", "seed=0", "optimizer=bszo"), small("second", "seed=1")
    status, asked = call([first, second], minutes=0.001)
    assert status == 3
    assert states(first) + states(second) == ["missing"] * 3
    assert len(asked) == 1  # the analysis comes last, always
    assert "to go on: python -m launch.measured" in capsys.readouterr().out
    assert call([first, second])[0] == 0
    assert states(first) + states(second) == ["finished"] * 3
    given = [
        [json.loads((run.directory / "job.json").read_text())["when"] for run in runs_of(stage)]
        for stage in (first, second)
    ]
    assert max(given[0]) < min(given[1])  # the first stage's runs were given before
    capsys.readouterr()
    assert call([first, second])[0] == 0
    assert attempts(first) + attempts(second) == [1, 1, 1]
    assert "to go on" not in capsys.readouterr().out


def test_a_failed_run_is_named_and_the_others_are_made(small, call, capsys):
    stage = small("one", "seed=0")
    good, bad = runs_of(stage)
    (bad.directory / "predictions.json").mkdir(parents=True)  # a file cannot be written there
    assert call([stage])[0] == 1
    assert sorted(states(stage)) == ["failed", "finished"]
    assert f"{bad.run_id} failed: IsADirectoryError" in capsys.readouterr().out
    assert call([stage])[0] == 1
    assert attempts(stage)[0] == 1
    assert good.directory != bad.directory


def test_a_run_of_another_process_is_left_alone(small, call):
    stage = small("one", "seed=0", "optimizer=mezo")
    (run,) = runs_of(stage)
    run.directory.mkdir(parents=True)
    with held(run.directory):
        assert call([stage])[0] == 3
    assert not (run.directory / "log.txt").exists()


def test_two_calls_do_not_disturb_each_other(small, call, tmp_path, capsys):
    (tmp_path / "out" / ".measured").mkdir(parents=True)
    with held(tmp_path / "out" / ".measured"):
        assert call([small("one", "seed=0")])[0] == 2
    assert "another call makes these" in capsys.readouterr().err


def test_weights_that_cannot_be_had_leave_the_stage_out_and_the_others_run(small, call, capsys):
    lost = small("lost", "seed=0", "model.path=package:no_such_package/x.gguf")
    found = small("found", "seed=0", "optimizer=mezo", "steps=1")
    assert call([lost, found])[0] == 0
    assert states(found) == ["finished"]
    assert "no_such_package" in capsys.readouterr().out


PROGRAM = """
import sys
from pathlib import Path
from launch.measured.driver import Driver, Options
from launch.measured.machine import Machine
from launch.measured.stages import Stage
out = Path(sys.argv[1])
chosen = [Stage(n, tuple(sys.argv[2:]) + (o,), gpu=False) for n, o in (("a", "seed=0"), ("b", "seed=1"))]
def analyse(sweeps, *rest):
    print("analysis")
    return []
sys.exit(Driver(chosen, Machine((), 0.0, 1), Options(10, None, False, out, out), analyse).run())
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_told_to_stop_it_saves_and_analyses(grid, tmp_path, number, code):
    long = [*grid, "optimizer=mezo", "steps=100000", "eval_every=100000"]
    (run,) = Sweep.of([*long, "seed=0"]).runs
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "out"), *long]
    process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not (run.directory / "metrics.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert "analysis" in output
    assert "told to stop" in output  # the second stage
    assert standings([run])[run.run_id].state == "interrupted"
    assert not Sweep.of([*long, "seed=1"]).runs[0].directory.exists()


def test_what_is_timed_comes_first_and_alone():
    mine, others = for_machine(STAGES, gpu=True)
    assert [s.name for s in mine[:4]] == [
        "table4",
        "table4_fast",
        "table4_factors",
        "study_smollm2",
    ]
    assert [s.alone for s in mine] == [True] * 3 + [False] * (len(mine) - 3)
    assert not others
    tiny, need_a_gpu = for_machine(STAGES, gpu=False)
    assert {s.sweep.split("_")[1] for s in tiny} == {"tiny"}
    assert need_a_gpu == mine
    sweeps = {path.stem for path in (ROOT / "conf" / "sweep").glob("*.yaml")}
    assert {s.sweep for s in STAGES} <= sweeps
    assert set().union(*(s.needs for s in STAGES)) <= set(stages.PIP)


def test_runs_share_a_gpu_by_cores_and_memory_unless_they_are_timed():
    timed, packed = Stage("t", (), alone=True), Stage("p", (), gib=3.0)
    big = Machine(("0", "1"), 139.0, 16)
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in big.slots(timed, 4)] == ["0"]
    assert big.at_once(packed) == 8
    assert len(big.slots(packed)) == 16
    assert Machine(("0",), 10.0, 16).at_once(packed) == 3
    assert Machine(("0",), 139.0, 16).at_once(packed) == 16
    assert big.at_once(packed, 5) == 5
    assert Machine((), 0.0, 4).at_once(Stage("c", (), gpu=False)) == 4


def test_a_missing_package_is_named_with_its_command(monkeypatch, tmp_path):
    monkeypatch.setenv("ZO_CACHE", str(tmp_path))
    monkeypatch.setitem(stages.PIP, "no_such_module", "no-such-package")
    stage = Stage("s", (), needs=("no_such_module", "json"))
    assert lacking(stage) == "no_such_module not installed; `pip install no-such-package`"
    assert lacking(Stage("s", (), needs=("json",))) == ""
    monkeypatch.setitem(stages.ESSENTIAL, "no_such_module", "no-such-package")
    assert "`pip install no-such-package`" in stages.lacking_essential()


def test_the_command_leaves_out_what_it_cannot_make_and_predicts_the_rest(
    small, monkeypatch, tmp_path, capsys
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setitem(stages.PIP, "no_such_module", "no-such-package")
    given = (
        Stage("on_a_gpu", ()),
        small("lacks", needs=("no_such_module",)),
        small("made", "seed=0"),
    )
    monkeypatch.setattr(measured, "STAGES", given)
    assert measured.main(["--dry-run", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "no GPU that PyTorch can use here: on_a_gpu need one"
    assert lines[1].startswith("lacks is left out: no_such_module not installed; `pip install no-s")
    assert ["made", "2", "0", "?"] in [line.split() for line in lines]
    assert not (tmp_path / "out").exists()
    assert measured.main(["--only", "on_a_gpu", "--out", str(tmp_path / "out")]) == 2


def test_bad_arguments_are_refused(capsys):
    for bad in (["--minutes", "0"], ["--processes", "0"], ["--only", "table5"]):
        with pytest.raises(SystemExit):
            measured.main(bad)
