"""A run on SLURM ends as if nothing had happened, whatever happens: preemption, time-out, scancel, a dead node."""

import json
import subprocess
import time

import pytest

from analysis.logs.run_file import read_run_file
from tests.slurm import one_node as slurm
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm


DIVIDED = ("hydra.launcher.tasks_per_node=2",)


def is_whole(run, history, attempts):
    rows = slurm.rows(run.directory)
    assert [{k: v for k, v in row.items() if not k.startswith("dist/")} for row in rows] == history
    assert slurm.attempts(run) == attempts
    (path,) = run.directory.glob("wandb/offline-run-*/run-*.wandb")
    logged = read_run_file(path)
    assert logged.history["step"].to_pylist() == [row["step"] for row in history]
    assert logged.exit_code == 0
    assert logged.summary["run/status"] == "finished"


@pytest.mark.parametrize("tasks", [(), DIVIDED], ids=["one task", "two tasks"])
def test_a_preempted_run_is_queued_again_and_continues(
    sandbox, start_run, uninterrupted, record_property, tasks
):
    interrupted_run = start_run(*tasks)
    before = time.time()
    command = ["sbatch", "--partition=high", "--gres=gpu:2", "--output=/dev/null", "--wrap=sleep 2"]
    subprocess.run(command, check=True, capture_output=True)
    sandbox.wait([interrupted_run], "queued")
    assert json.loads((interrupted_run.directory / "status.json").read_text())["run/status"] == (
        "interrupted"
    )
    reached = slurm.steps(interrupted_run)[-1]
    saved = time.time()
    log = interrupted_run.directory / "log.txt"
    wait_for(lambda: log.read_text().count("\n== ") == 1, "the job to start again")
    started = time.time()
    sandbox.wait_for_step(interrupted_run, reached + 1)
    resumed = time.time()
    sandbox.wait([interrupted_run], "finished")
    is_whole(interrupted_run, uninterrupted, attempts=2)
    assert "restart 1" in log.read_text()
    assert 20 <= reached < 200
    assert ("2 processes divide 3 forward passes" in log.read_text()) == bool(tasks)
    assert (interrupted_run.directory / "log-1.txt").exists() == bool(tasks)
    figures = {"save": saved - before, "requeue": started - saved, "resume": resumed - started}
    record_property("seconds", json.dumps(figures))
    print(f"preempted after step {reached}; seconds: {figures}")


def test_a_run_that_reaches_its_time_limit_is_queued_again_and_continues(sandbox, uninterrupted):
    long = ("optimizer=bszo", "steps=20000")  # the same run, but for its end
    limit = ("hydra.launcher.timeout_min=2", "hydra.launcher.signal_delay_s=60")
    sandbox.submit(*long, *limit)
    (run,) = sandbox.runs(*long)
    sandbox.wait_for_step(run, 1)
    sandbox.wait([run], "queued")
    (name,) = slurm.job_names(sandbox)
    (job,) = [line.split()[0] for line in slurm.queued(name)]
    subprocess.run(["scontrol", "update", f"JobId={job}", "TimeLimit=60"], check=True)
    reached = slurm.steps(run)[-1]
    sandbox.wait_for_step(run, reached + 10)
    history = slurm.rows(run.directory)
    assert [row["step"] for row in history] == list(range(1, len(history) + 1))
    assert history[:199] == uninterrupted[:199]  # its last one has another evaluation
    assert slurm.attempts(run) == 2
    told = "".join(path.read_text() for path in sandbox.out.glob(".slurm/*/*_log.*"))
    assert "Job has timed out" in told
    assert "(99 remaining timeouts)" in told


def test_a_run_on_a_node_that_dies_is_queued_again_and_continues(sandbox, start_run, uninterrupted):
    interrupted_run = start_run()
    slurm.one_node("kill-node")
    try:
        sandbox.wait([interrupted_run], "queued")
    finally:
        slurm.one_node("start-node")
    sandbox.wait([interrupted_run], "finished")
    is_whole(interrupted_run, uninterrupted, attempts=2)
