"""Sweeps of runs that take a second, and a way to say where a run stands without making it."""

import json

import pytest

from launch.profile import register
from launch.sweep import Sweep
from tests.conftest import small_task
from zo.run.directory import freeze

register()


@pytest.fixture
def grid(reviews_csv, tmp_path):
    """Overrides of four runs in a directory of their own."""
    return [
        *small_task(reviews_csv),
        "steps=2",
        "eval_every=2",
        "lr=1e-4",
        "threads=1",
        "optimizer=mezo,bszo",
        "seed=0,1",
        f"out={tmp_path / 'out'}",
    ]


def changed(overrides, *others):
    """Returns overrides with others in the place of those of the same key: a command may give a key once."""
    keys = [other.split("=")[0] for other in others]
    return [o for o in overrides if o.split("=")[0] not in keys] + [*others]


@pytest.fixture
def runs(grid):
    return Sweep.of(grid).runs


@pytest.fixture
def note():
    """Returns a function that writes a run's status."""

    def write(run, status, **more):
        freeze(run.cfg)
        content = {"run/status": status, **{f"run/{k}": v for k, v in more.items()}}
        (run.directory / "status.json").write_text(json.dumps(content))

    return write
