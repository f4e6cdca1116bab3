"""A sweep on SLURM: packed jobs, a run that fails and is made again, a submitter that is stopped."""

import json
import re
import signal
import subprocess
import sys

import pytest

from launch import ROOT
from launch.sweep import Sweep
from tests.slurm.conftest import call, reach
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

DEVICE = re.compile(r"== .*SLURM job \d+, restart 0, CUDA_VISIBLE_DEVICES=(\d)\n")


LOOKING_OFTEN = """
import runpy
from launch import multirun
multirun.SLURM_S = 1
runpy.run_path("train.py", run_name="__main__")
"""


def started(overrides):
    """Starts a sweep in a process of its own; returns it with its runs."""
    command = [sys.executable, "-c", LOOKING_OFTEN, "-m", *overrides]
    runs = Sweep.of(overrides).runs
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=ROOT, text=True, **pipes), runs


def test_one_of_a_packed_jobs_runs_fails_without_the_others_and_is_made_again(sweep):
    grid = [*sweep, "optimizer=mezo", "seed=0,1,2", "steps=20", "hydra.launcher.runs_per_job=2"]
    process, runs = started(grid)
    lost = runs[0].directory / "predictions.csv"
    lost.mkdir(parents=True)  # a file cannot be written there
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 1, output
    assert output.splitlines()[-1] == "4 runs: 3 finished, 1 failed"
    assert re.search(f"failed: IsADirectoryError: .*, see {lost.parent}", output)
    assert "Traceback" in (lost.parent / "error.txt").read_text()
    jobs = [json.loads((run.directory / "job.json").read_text()) for run in runs]
    assert [job["index"] for job in jobs] == [0, 0, 1, 1]
    heads = [(run.directory / "log.txt").read_text() for run in runs[:2]]
    devices = [DEVICE.match(head).group(1) for head in heads]
    assert devices[0] == devices[1]  # two runs of a job share its GPU
    wait_for(lambda: not call("squeue", "--noheader"), "the jobs to end, as their runs have", 60)
    told = [path.read_text() for path in lost.parents[1].glob(".slurm/*/*.err")]
    assert sum(f"1 of 2 runs failed\n  {runs[0].run_id}: " in text for text in told) == 1
    shown = call("scontrol", "show", "job")
    ends = re.findall(rf"JobName={jobs[0]['name']}\n(?:.*\n)*?   JobState=(\w+)", shown)
    assert sorted(ends) == ["COMPLETED", "FAILED"]

    lost.rmdir()
    process, _ = started(grid)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    assert "4 runs: 3 finished, 1 failed; 1 submitted" in output
    assert output.splitlines()[-1] == "4 runs: 4 finished"


def test_jobs_go_on_when_the_submitter_is_stopped(sweep):
    process, runs = started([*sweep, "optimizer=mezo", "seed=0,1", "steps=60"])
    wait_for(lambda: "zo-runs" in call("squeue", "--format=%j"), "the jobs", 60)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "Jobs that were submitted go on. How: zo status" in output
    reach(runs, "finished")
