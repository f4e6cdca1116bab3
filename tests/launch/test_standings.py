"""Where runs stand: the lock decides what runs, the queue what waits, the status the rest; and the table of it."""

import os
import time

from launch import status
from launch.records import Record
from launch.sweep import standings
from zo.run.lock import held


def states(runs, **options):
    found = standings(runs, **options)
    return [found[run.run_id].state for run in runs]


def give(run, name="zo-x", index=0, launcher="slurm"):
    run.directory.mkdir(parents=True, exist_ok=True)
    Record(launcher, name, index, time.time()).write(run.directory)


def test_a_run_runs_if_a_process_holds_it_whatever_its_status_says(runs, note):
    note(runs[0], "running")
    note(runs[1], "running")
    with held(runs[1].directory):
        assert states(runs[:2]) == ["interrupted", "running"]
        assert f"process {os.getpid()} on" in standings(runs)[runs[1].run_id].note
    assert states(runs[:2]) == ["interrupted", "interrupted"]


def test_a_run_that_failed_and_was_given_to_a_job_again_is_queued_until_that_one_fails(runs, note):
    """`ask_queue=False` takes the job to be alive."""
    (run, *_) = runs
    note(run, "failed", error="OSError: no space")
    give(run)
    status_file, now = run.directory / "status.json", time.time()
    os.utime(status_file, (now - 60, now - 60))
    assert states([run], ask_queue=False) == ["queued"]
    os.utime(status_file, (now + 60, now + 60))
    assert states([run], ask_queue=False) == ["failed"]


def test_status_shows_a_row_per_method_and_lists(grid, runs, note, capsys):
    note(runs[0], "collapsed", collapse_what="loss is nan at step 7")
    note(runs[3], "failed", error="Traceback\nRuntimeError: out of memory")
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
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("  loss is nan at step 7")
    assert len(lines) == 4 + 5


def test_hours_are_steps_times_the_papers_time_and_say_so(capsys, tmp_path):
    typed = ["model=opt-13b", "task=sst2", "optimizer=mezo,bszo_b", "steps=3600", f"out={tmp_path}"]
    assert status.main(typed) == 0
    lines = capsys.readouterr().out.splitlines()
    mezo, bszo_b = (line.split() for line in lines[1:3])
    assert mezo[-2:] == ["464.2*", "0.5"]  # 3,600 steps of 464.2 ms
    assert bszo_b[-2:] == ["587.3*", "0.6"]  # 4/3 of BSZO's 440.5
    assert lines[3] == "* the paper's time per step, on an H200; --step-ms gives another"
    assert lines[4] == "2 runs left: at most 1.1 hours"
