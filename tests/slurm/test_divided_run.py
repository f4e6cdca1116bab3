"""A run that two tasks of a job divide, preempted on the way."""

import json
import subprocess

import pytest

from tests.slurm import one_node as slurm

pytestmark = pytest.mark.slurm

RUN = ("optimizer=bszo", "steps=200")
TASKS = ("hydra.launcher.tasks_per_node=2", "hydra.launcher.cpus_per_task=1")


def test_two_tasks_divide_a_run_are_preempted_and_go_on(sandbox, uninterrupted):
    sandbox.submit(*RUN, *TASKS, "hydra.launcher.gres=gpu:2")
    (run,) = sandbox.runs(*RUN)
    sandbox.wait_for_step(run, 20)
    command = ["sbatch", "--partition=high", "--gres=gpu:2", "--output=/dev/null", "--wrap=sleep 2"]
    subprocess.run(command, check=True, capture_output=True)
    sandbox.wait([run], "queued")
    status = json.loads((run.directory / "status.json").read_text())
    assert status["run/status"] == "interrupted"
    sandbox.wait([run], "finished")
    rows = [
        {key: value for key, value in row.items() if not key.startswith("dist/")}
        for row in slurm.rows(run.directory)
    ]
    assert rows == uninterrupted
    assert "2 processes divide 3 forward passes per step" in (run.directory / "log.txt").read_text()
    assert (run.directory / "log-1.txt").exists()
