"""The plan's command: what it counts, what it estimates, what it refuses."""

import json

from launch import plan
from launch.sweep import Sweep


def shown(capsys, *arguments):
    code = plan.main(arguments)
    out = capsys.readouterr()
    return code, out.out.splitlines(), out.err


def test_hours_are_steps_times_the_papers_time_per_step(capsys):
    code, lines, _ = shown(
        capsys, "model=opt-13b", "task=sst2", "optimizer=mezo,bszo_b", "steps=3600"
    )
    assert code == 0
    mezo, bszo_b = (line.split() for line in lines[1:3])
    assert mezo[-2:] == ["464.2", "0.5"]  # 3,600 steps of 464.2 ms
    assert bszo_b[-2:] == ["587.3", "0.6"]  # 4/3 of BSZO's 440.5
    assert lines[-1] == "2 runs"


def test_finished_runs_are_counted_and_their_time_is_preferred(capsys, tmp_path):
    overrides = ["optimizer=mezo", "lr=1e-6,1e-7", "steps=1000", f"out={tmp_path}"]
    first, _ = Sweep.of(overrides).runs
    (tmp_path / first.run_id).mkdir()
    status = {"run/status": "collapsed", "time/step_ms_median": 7200.0}
    (tmp_path / first.run_id / "status.json").write_text(json.dumps(status))
    _, lines, _ = shown(capsys, *overrides, "--list", "--step-ms", "1")
    assert lines[0].startswith(f"{first.run_id}  collapsed")
    assert "  missing" in lines[1]
    assert lines[-2] == "1 finished, 1 to run: at most 2.0 GPU hours"


def test_an_unknown_step_time_is_said(capsys):
    _, lines, _ = shown(capsys, "optimizer=mezo", "lr=1e-6")
    assert lines[-2] == "0 finished, 1 to run: 1 of unknown step time (give --step-ms)"


def test_a_bad_override_is_refused(capsys):
    code, lines, error = shown(capsys, "optimizer=mezzo")
    assert code == 2
    assert lines == []
    assert error.startswith("optimizer=mezzo: must be one of")
