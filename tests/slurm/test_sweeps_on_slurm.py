"""A sweep on SLURM: an array over the GPUs, packed jobs, a run that fails, submitters that die or compete."""

import json
import re
import signal
import subprocess
from datetime import datetime

import pytest

from launch import status, submit
from tests.slurm import one_node as slurm
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

HEAD = re.compile(r"== (\S+ \S+) .*SLURM job (\d+), restart 0, CUDA_VISIBLE_DEVICES=(\S+)")


def test_a_sweep_of_four_shares_two_gpus(sandbox):
    grid = ("optimizer=mezo,bszo", "seed=0,1", "steps=60")
    process = sandbox.start(*grid, "hydra.launcher.array_parallelism=2")
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    runs = sandbox.runs(*grid)
    sandbox.wait(runs, "finished", 1)
    assert "4 runs: 4 missing; 4 submitted" in output
    assert output.splitlines()[-1] == "4 runs: 4 finished"
    (script,) = sandbox.out.glob(".slurm/**/*submission.sh")
    assert "#SBATCH --array=0-3%2" in script.read_text()
    spans = []
    for run in runs:
        when, _, device = HEAD.match((run.directory / "log.txt").read_text()).groups()
        start = datetime.strptime(when, "%Y-%m-%d %H:%M:%S").timestamp()
        spans.append((start, (run.directory / "status.json").stat().st_mtime, device))
    assert {device for *_, device in spans} == {"0", "1"}
    for i, (start, _, device) in enumerate(spans):
        others = [d for j, (s, e, d) in enumerate(spans) if j != i and s <= start < e - 1]
        assert device not in others
        assert len(others) <= 1


def test_one_of_a_packed_jobs_runs_fails_without_the_others(sandbox, capsys):
    grid = ("optimizer=mezo", "seed=0,1,2", "steps=20")
    runs = sandbox.runs(*grid)
    bad = runs[0]
    (bad.directory / "predictions.json").mkdir(parents=True)  # a file cannot be written there
    process = sandbox.start(*grid, "hydra.launcher.runs_per_job=2")
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 1, output
    assert output.splitlines()[-1] == "3 runs: 2 finished, 1 failed"
    assert re.search(f"failed: IsADirectoryError: .*, see {bad.directory}", output)
    sandbox.wait(runs[1:], "finished", 1)
    sandbox.wait(runs[:1], "failed", 1)
    assert "Traceback" in (bad.directory / "error.txt").read_text()
    assert {json.loads((r.directory / "job.json").read_text())["index"] for r in runs} == {0, 1}
    devices = {HEAD.match((r.directory / "log.txt").read_text()).group(3) for r in runs[:2]}
    assert len(devices) == 1  # two runs of a job share its GPU
    (name,) = slurm.job_names(sandbox)
    wait_for(lambda: not slurm.queued(name), "the jobs to end, as their runs have", 60)
    (told,) = [
        p.read_text() for p in sandbox.out.glob(".slurm/*/*.err") if "failed" in p.read_text()
    ]
    assert f"1 of 2 runs failed\n  {bad.run_id}: " in told
    jobs = subprocess.run(["scontrol", "show", "job"], capture_output=True, text=True).stdout
    ends = re.findall(rf"JobName={name}\n(?:.*\n)*?   JobState=(\w+)", jobs)
    assert sorted(ends) == ["COMPLETED", "FAILED"]

    capsys.readouterr()
    assert status.main([*sandbox.overrides(*grid), "--failed"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(f"{bad.run_id}  failed")
    assert shown[0].count("IsADirectoryError: [Errno 21] Is a directory") == 1
    assert shown[-1] == "2 of 3 runs done: 2 finished, 1 failed"

    (bad.directory / "predictions.json").rmdir()
    sandbox.submit(*grid)
    assert "0 submitted\n1 failed before: --retry-failed" in capsys.readouterr().out
    assert submit.main([*sandbox.overrides(*grid), "--retry-failed"]) == 0
    assert "2 finished, 1 failed; 1 submitted" in capsys.readouterr().out
    sandbox.wait(runs, "finished")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_jobs_go_on_when_the_submitter_is_killed(sandbox, number):
    grid = ("optimizer=mezo", "seed=0,1", "steps=60")
    process = sandbox.start(*grid)
    wait_for(lambda: slurm.job_names(sandbox) and slurm.queued("zo-runs"), "the jobs", 60)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "Jobs that were submitted go on. How: python -m launch.status" in output
    sandbox.wait(sandbox.runs(*grid), "finished")
