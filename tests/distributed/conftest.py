"""Small runs that processes divide."""

import pytest

from zo.run.directory import freeze

STEPS = 8


@pytest.fixture
def small_run(make_run):
    """Returns a function from overrides to the configuration of a run of some steps."""

    def make(*overrides):
        return make_run(
            *(f"steps={STEPS}", "eval_every=3", "lr=1e-3", "threads=1", "device=cpu"),
            *("batch_size=8", "eval_tokens=256", "distributed.check_every=2"),
            *("distributed.timeout=20", *overrides),
        )

    return make


@pytest.fixture
def frozen(small_run, tmp_path):
    """Returns a function from overrides to the frozen directories of equal runs, in several places."""

    def make(count, *overrides):
        directories = []
        for i in range(count):
            cfg = small_run(*overrides)
            cfg.out = str(tmp_path / f"copy{i}")
            directories.append(freeze(cfg))
        return directories

    return make
