"""Sweeps of runs that take a second, and a way to say where a run stands without making it."""

import json

import pytest

from launch.profile import register
from launch.sweep import Sweep, standings
from tests.conftest import small_task
from zo.run.store.directory import freeze

register()


@pytest.fixture
def grid(reviews_csv, tmp_path):
    """Overrides of four runs in a directory of their own; the fifth is the untrained model's."""
    keys = ("steps=2", "eval_every=2", "lr=1e-4", "threads=1", "optimizer=mezo,bszo", "seed=0,1")
    return [*small_task(reviews_csv), *keys, f"out={tmp_path / 'out'}"]


def changed(overrides, *others):
    """Returns overrides with others in the place of those of the same key: a command may give a key once."""
    return [*{word.partition("=")[0]: word for word in (*overrides, *others)}.values()]


@pytest.fixture
def runs(grid):
    """The four runs that train."""
    return Sweep.of(grid).runs[:4]


def note(run, status, **more):
    """Writes a run's status."""
    freeze(run.cfg)
    content = {"run/status": status, **{f"run/{k}": v for k, v in more.items()}}
    (run.directory / "status.json").write_text(json.dumps(content))


def states(runs, **options):
    found = standings(runs, **options)
    return [found[run.run_id].state for run in runs]


def attempts(run):
    """Returns how often a run was started and got as far as its first step."""
    return len((run.directory / "attempts.jsonl").read_text().splitlines())
