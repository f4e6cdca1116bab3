"""Where runs stand: the lock decides what runs, the queue what waits, the status the rest; and the table of it."""

import os
import time

from launch import status
from launch.records import Record
from launch.sweep import standings
from tests.launch.conftest import note, states
from zo.run.lock import held


def test_a_run_runs_if_a_process_holds_it_whatever_its_status_says(runs):
    note(runs[0], "running")
    note(runs[1], "running")
    with held(runs[1].directory):
        assert states(runs[:2]) == ["interrupted", "running"]
        assert f"process {os.getpid()} on" in standings(runs)[runs[1].run_id].note
    assert states(runs[:2]) == ["interrupted", "interrupted"]


def test_a_run_that_failed_and_was_given_to_a_job_again_is_queued_until_that_one_fails(runs):
    """`ask_queue=False` takes the job to be alive."""
    (run, *_) = runs
    note(run, "failed", error="OSError: no space")
    now = time.time()
    Record("slurm", "zo-x", 0, now).write(run.directory)
    for written, state in ((now - 60, "queued"), (now + 60, "failed")):
        os.utime(run.directory / "status.json", (written, written))
        assert states([run], ask_queue=False) == [state]


def test_status_shows_a_row_per_method_and_lists(grid, runs, capsys):
    note(runs[0], "collapsed", collapse_what="loss is nan at step 7")
    note(runs[3], "failed", error="Traceback\nRuntimeError: out of memory")
    assert status.main([*grid, "--failed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == [runs[3].run_id, "failed"]
    assert lines[0].endswith("  RuntimeError: out of memory")
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "model precision method tasks runs collapsed failed missing ms/step hours left",
        "reviews-tiny fp32 mezo rotten_tomatoes 2 1 · 1 ? ?",
        "reviews-tiny fp32 bszo rotten_tomatoes 2 · 1 1 ? ?",
        "3 runs left: 3 runs of unknown step time (give --step-ms)",
        "1 of 4 runs done: 1 collapsed, 1 failed, 2 missing",
    ]
    assert status.main([*grid, "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("  loss is nan at step 7")
    assert len(lines) == 4 + 5


def test_hours_are_steps_times_the_papers_time_and_say_so(capsys, tmp_path):
    typed = ["model=opt-13b", "task=sst2", "optimizer=mezo,bszo_b", "steps=3600", f"out={tmp_path}"]
    assert status.main(typed) == 0
    assert [" ".join(line.split()[-4:]) for line in capsys.readouterr().out.splitlines()[1:-1]] == [
        "1 1 464.2* 0.5",  # 3,600 steps of 464.2 ms
        "1 1 587.3* 0.6",  # 4/3 of BSZO's 440.5
        "H200; --step-ms gives another",
        "at most 1.1 hours",
    ]
