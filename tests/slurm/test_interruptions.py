"""A run on SLURM ends as if nothing had happened, whatever happens: preemption, time-out, scancel, a dead node."""

import json

import pytest

from tests.launch.conftest import attempts
from tests.slurm.conftest import call, history, one_node, reach, reach_step

pytestmark = pytest.mark.slurm

GPUS = "hydra.launcher.gres=gpu:2"
DIVIDED = "hydra.launcher.tasks_per_node=2"


@pytest.mark.parametrize("tasks", [(), (DIVIDED,)], ids=["one task", "two tasks"])
def test_a_preempted_run_is_queued_again_and_continues(start_run, uninterrupted, tasks):
    run = start_run(GPUS, *tasks)
    call("sbatch", "--partition=high", "--gres=gpu:2", "--output=/dev/null", "--wrap=sleep 2")
    reach([run], "queued")
    status = json.loads((run.directory / "status.json").read_text())
    assert status["run/status"] == "interrupted"
    reach([run], "running")
    assert not [*run.directory.parent.glob(".slurm/*/*_result.pkl")], "the job has ended for good"
    reach([run], "finished")
    assert history(run.directory) == uninterrupted
    assert attempts(run) == 2
    log = (run.directory / "log.txt").read_text()
    assert "restart 1" in log
    assert ("2 processes divide 3 forward passes" in log) == bool(tasks)
    assert (run.directory / "log-1.txt").exists() == bool(tasks)


def test_a_run_that_reaches_its_time_limit_is_queued_again_and_continues(start_run, uninterrupted):
    limit = ("hydra.launcher.timeout_min=2", "hydra.launcher.signal_delay_s=60")
    run = start_run("steps=20000", *limit)  # the same run, but for its end
    reach([run], "queued")
    job = call("squeue", "--noheader", "--format=%i").strip()
    call("scontrol", "update", f"JobId={job}", "TimeLimit=60")
    reach_step(run, len(history(run.directory)) + 10)
    rows = history(run.directory)
    assert rows[:199] == uninterrupted[:199]  # its last one has another evaluation
    assert attempts(run) == 2
    told = "".join(path.read_text() for path in run.directory.parent.glob(".slurm/*/*_log.*"))
    assert "Job has timed out" in told
    assert "(99 remaining timeouts)" in told


def test_a_run_on_a_node_that_dies_is_queued_again_and_continues(start_run, uninterrupted):
    run = start_run()
    one_node("kill-node")
    try:
        reach([run], "queued")
    finally:
        one_node("start-node")
    reach([run], "finished")
    assert history(run.directory) == uninterrupted
    assert attempts(run) == 2
