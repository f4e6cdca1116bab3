"""Sweeps of small runs on a real SLURM; every test leaves it empty and whole."""

import subprocess

import pytest

from tests.conftest import small_task
from tests.slurm import one_node as slurm
from tests.support.waiting import wait_for


@pytest.fixture(scope="session", autouse=True)
def controller():
    if (reason := slurm.missing()) is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def small(reviews_csv):
    """Overrides of a run of seconds."""
    return [
        *small_task(reviews_csv),
        "eval_every=20",
        "lr=1e-4",
        "patience=null",  # all is learned at step 20
        "threads=1",
    ]


@pytest.fixture
def sandbox(tmp_path, small):
    made = slurm.Sandbox(tmp_path / "out", small)
    yield made
    names = slurm.job_names(made)

    def gone() -> bool:  # a job that is being queued again outlives the first scancel
        for name in names:
            subprocess.run(["scancel", f"--name={name}"], check=False)
        return not any(slurm.queued(name) for name in names)

    wait_for(gone, "jobs to end")


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory, small):
    """The history of the run that the tests interrupt, made in one go."""
    from zo import config
    from zo.config import command_line
    from zo.run.runner import run

    config.register()
    out = tmp_path_factory.mktemp("uninterrupted")
    (cfg,) = command_line.runs([*small, *INTERRUPTED, f"out={out}", "tracking.mode=disabled"])
    run(cfg)
    (directory,) = out.glob("bszo-*")
    return slurm.rows(directory)


INTERRUPTED = ("optimizer=bszo", "steps=200")


@pytest.fixture
def start_run(sandbox):
    """Returns a function that submits a run which lasts long enough to be interrupted, and waits for its step 20."""

    def start(*more):
        sandbox.submit(*INTERRUPTED, "hydra.launcher.gres=gpu:2", *more)
        (run,) = sandbox.runs(*INTERRUPTED)
        sandbox.wait_for_step(run, 20)
        return run

    return start
