"""One set of logs for all tests, written by W&B itself; tests that change them get a copy."""

import shutil

import pytest

from tests.analysis.make_logs import write_quickstart


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path_factory, monkeypatch):
    """No test leaves what it read in the cache of the checkout."""
    monkeypatch.setattr("analysis.logs.sources.CACHE", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory):
    """The miniature sweep, to be read only."""
    out = tmp_path_factory.mktemp("quickstart")
    write_quickstart(out)
    return out


@pytest.fixture
def logs(quickstart, tmp_path):
    """A copy of the miniature sweep, to be spoiled."""
    return shutil.copytree(quickstart, tmp_path / "out", symlinks=True)
