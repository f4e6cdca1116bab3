"""Where runs stand: the lock decides what runs, the queue what waits, the status the rest; and the table of it."""

import json
import os
import subprocess
import sys
import time

import pytest

from launch import records, status
from launch.records import QueueError, Record
from launch.sweep import Sweep, counted, standings
from zo.run.lock import held


def states(runs, **options):
    found = standings(runs, **options)
    return [found[run.run_id].state for run in runs]


@pytest.fixture
def slurm_queue(monkeypatch):
    """What squeue would list: a set to be filled."""
    listed: set[tuple[str, int]] = set()
    monkeypatch.setattr(records, "queue", lambda names: {job for job in listed if job[0] in names})
    return listed


def give(run, name="zo-x", index=0, launcher="slurm"):
    run.directory.mkdir(parents=True, exist_ok=True)
    Record(launcher, name, index, time.time()).write(run.directory)


def test_states_without_any_queue(runs, note):
    note(runs[0], "finished")
    note(runs[1], "collapsed", collapse_what="loss is nan at step 7")
    note(runs[2], "failed", error="Traceback\nOSError: no space")
    assert states(runs) == ["finished", "collapsed", "failed", "missing"]
    found = standings(runs)
    assert found[runs[1].run_id].note == "loss is nan at step 7"
    assert found[runs[2].run_id].note == "OSError: no space"
    assert counted(found) == "1 finished, 1 collapsed, 1 failed, 1 missing"


def test_a_run_runs_if_a_process_holds_it_whatever_its_status_says(runs, note):
    note(runs[0], "running")
    note(runs[1], "running")
    with held(runs[1].directory):
        assert states(runs[:2]) == ["interrupted", "running"]
        assert f"process {os.getpid()} on" in standings(runs)[runs[1].run_id].note
    assert states(runs[:2]) == ["interrupted", "interrupted"]


def test_a_run_waits_if_its_job_is_in_the_queue(runs, note, slurm_queue):
    for index, run in enumerate(runs):
        give(run, index=index)
    note(runs[1], "interrupted")  # preempted, and queued again
    slurm_queue |= {("zo-x", 0), ("zo-x", 1), ("zo-other", 2)}
    assert states(runs) == ["queued", "queued", "missing", "missing"]
    note(runs[0], "finished")  # in a packed job that goes on
    assert states(runs)[0] == "finished"


def test_a_run_that_failed_in_a_job_that_goes_on_has_failed(runs, note, slurm_queue):
    slurm_queue.add(("zo-x", 0))
    give(runs[0])
    note(runs[0], "failed", error="E")
    os.utime(runs[0].directory / "job.json", (1e9, 1e9))
    assert states(runs[:1]) == ["failed"]
    give(runs[0])  # and was given to another one since
    os.utime(runs[0].directory / "status.json", (1e9, 1e9))
    assert states(runs[:1]) == ["queued"]


def test_a_local_process_that_lives_keeps_its_runs_queued(runs, tmp_path):
    folder = tmp_path / "pool"
    folder.mkdir()
    give(runs[0], str(folder), launcher="local")
    assert states(runs[:1]) == ["missing"]
    with held(folder):
        assert states(runs[:1]) == ["queued"]


def test_without_an_answer_from_slurm_jobs_count_as_queued(runs, grid, monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda _: None)
    give(runs[0])
    with pytest.raises(QueueError, match="squeue is not on PATH"):
        standings(runs)
    assert states(runs, ask_queue=False) == ["queued", "missing", "missing", "missing"]
    assert status.main(grid) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1] == "0 of 4 runs done: 1 queued, 3 missing"
    assert shown.err.endswith("jobs that have not ended are shown as queued\n")


def test_a_torn_record_or_status_is_no_record(runs):
    for run in runs[:2]:
        run.directory.mkdir(parents=True)
    (runs[0].directory / "job.json").write_text('{"launcher": "sl')
    (runs[1].directory / "status.json").write_text("{")
    assert states(runs) == ["missing"] * 4


def test_status_shows_a_row_per_method_and_lists(grid, runs, note, capsys):
    note(runs[0], "collapsed", collapse_what="loss is nan at step 7")
    note(runs[3], "failed", error="RuntimeError: out of memory")
    assert status.main([*grid, "--failed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == [runs[3].run_id, "failed"]
    assert lines[0].endswith("  RuntimeError: out of memory")
    names = ["model", "precision", "method", "tasks", "runs", "collapsed", "failed", "missing"]
    assert lines[1].split() == [*names, "ms/step", "hours", "left"]
    mezo, bszo = (line.replace("·", "0").split() for line in lines[2:4])
    kind = ["reviews-tiny", "fp32"]
    assert mezo == [*kind, "mezo", "rotten_tomatoes", *map(str, [2, 1, 0, 1]), "?", "?"]
    assert bszo == [*kind, "bszo", "rotten_tomatoes", *map(str, [2, 0, 1, 1]), "?", "?"]
    assert lines[4] == "3 runs left: 3 runs of unknown step time (give --step-ms)"
    assert lines[5] == "1 of 4 runs done: 1 collapsed, 1 failed, 2 missing"
    assert status.main([*grid, "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4 + 5


def test_hours_are_steps_times_the_papers_time_and_say_so(capsys, tmp_path):
    typed = ["model=opt-13b", "task=sst2", "optimizer=mezo,bszo_b", "steps=3600", f"out={tmp_path}"]
    assert status.main(typed) == 0
    lines = capsys.readouterr().out.splitlines()
    mezo, bszo_b = (line.split() for line in lines[1:3])
    assert mezo[-2:] == ["464.2*", "0.5"]  # 3,600 steps of 464.2 ms
    assert bszo_b[-2:] == ["587.3*", "0.6"]  # 4/3 of BSZO's 440.5
    assert lines[3] == "* the paper's time per step, on an H200; --step-ms gives another"
    assert lines[4] == "2 runs left: at most 1.1 hours"


def test_a_measured_time_is_preferred(capsys, tmp_path):
    typed = ["optimizer=mezo", "lr=1e-6,1e-7", "steps=1000", f"out={tmp_path}"]
    first, _ = Sweep.of(typed).runs
    first.directory.mkdir()
    content = {"run/status": "collapsed", "time/step_ms_median": 7200.0}
    (first.directory / "status.json").write_text(json.dumps(content))
    assert status.main([*typed, "--step-ms", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-2] == "1 runs left: at most 2.0 hours"


def test_status_refuses_what_could_not_be_run(capsys):
    assert status.main(["optimizer=mezzo"]) == 2
    assert capsys.readouterr().err.startswith("optimizer=mezzo: must be one of")


def test_the_group_of_every_run_is_the_sweeps_name():
    assert {run.cfg.tracking.group for run in Sweep.of(["sweep=quickstart"]).runs} == {"quickstart"}
    assert [r.cfg.tracking.group for r in Sweep.of(["lr=1e-6"]).runs] == [None]
    (own,) = Sweep.of(["lr=1e-6", "tracking.group=mine"]).runs
    assert own.cfg.tracking.group == "mine"


@pytest.mark.process
def test_status_imports_neither_torch_nor_wandb():
    code = "import sys, launch.status; print([m for m in ('torch', 'wandb') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
