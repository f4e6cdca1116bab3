"""Sweeps of small runs on the SLURM of one node that one_node_slurm.sh starts; every test leaves it empty and whole."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from launch import submit
from launch.profile import register
from launch.sweep import Sweep, standings
from tests.conftest import small_task
from tests.launch.conftest import changed
from tests.support.waiting import wait_for
from zo.config import command_line
from zo.run import runner
from zo.run.store.rows import read_rows

ONE_NODE = Path(__file__).with_name("one_node_slurm.sh")
CONF = Path(os.environ.get("ZO_SLURM_DIR", "/var/lib/zo-slurm")) / "slurm.conf"
INTERRUPTED = ("optimizer=bszo", "steps=200")
PROFILE = ("partition=low", "gres=gpu:1", "cpus_per_task=1", "mem_gb=1")


def call(*command):
    """Returns what a program prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def one_node(what):
    """Does something to the SLURM of this machine."""
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n", "--preserve-env=ZO_SLURM_DIR"]
    subprocess.run([*as_root, str(ONE_NODE), what], check=True, timeout=120)


@pytest.fixture(scope="session", autouse=True)
def controller():
    there = shutil.which("sbatch") and CONF.exists()
    if not there or os.environ.setdefault("SLURM_CONF", str(CONF)) != str(CONF):
        pytest.skip(f"no SLURM of one node here: {ONE_NODE} start")
    assert "is UP" in call("scontrol", "ping"), f"slurmctld does not run: {ONE_NODE} start"
    register()


@pytest.fixture(scope="session")
def small(reviews_csv):
    """Overrides of runs of seconds."""
    keys = ("eval_every=20", "lr=1e-4", "patience=null", "threads=1")  # all is learned at step 20
    return [*small_task(reviews_csv), *keys]


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory, small):
    """The history of the run that the tests interrupt, made in one go."""
    out = tmp_path_factory.mktemp("uninterrupted")
    typed = [*small, *INTERRUPTED, f"out={out}", "tracking.mode=disabled"]
    runner.run(command_line.runs(typed)[0])
    (directory,) = out.glob("bszo-*")
    return history(directory)


@pytest.fixture
def sweep(tmp_path, small):
    """Overrides of runs on SLURM in a directory of their own."""
    profile = [f"hydra.launcher.{key}" for key in PROFILE]
    yield [*small, f"out={tmp_path / 'out'}", "hydra/launcher=slurm", *profile]

    def gone():  # a job that is being queued again outlives the first scancel
        call("scancel", "--me")
        return not call("squeue", "--noheader")

    wait_for(gone, "jobs to end")


@pytest.fixture
def start_run(sweep):
    """Returns a function that submits a run which lasts long enough to be interrupted, and waits for its step 20."""

    def start(*more):
        overrides = changed([*sweep, *INTERRUPTED], *more)
        assert submit.main(overrides) == 0
        (run,) = Sweep.of(overrides).runs
        reach_step(run, 20)
        return run

    return start


def reach(runs, state):
    """Waits until all runs are in a state."""
    wait_for(
        lambda: {standing.state for standing in standings(runs).values()} == {state},
        f"all to be {state}, see {runs[0].directory.parent}",
        180,
    )


def reach_step(run, step):
    wait_for(lambda: len(history(run.directory)) >= step, f"{run.directory} to reach {step}", 180)


def history(directory):
    """Returns a run's rows without what depends on the machine's speed and on processes."""
    speed = ("time/", "mem/", "dist/")
    rows = read_rows(directory)
    return [{k: v for k, v in row.items() if not k.startswith(speed)} for row in rows]
