"""Runs as child processes: several at once, each on its device, one failing without the others."""

import json

import pytest

from launch import pool
from launch.pool import Pool, slots

pytestmark = pytest.mark.process

SCRIPT = """
echo $(date +%s.%N) $CUDA_VISIBLE_DEVICES >$1/span
. $1/end
"""
TOGETHER = """
for _ in $(seq 1200); do [ $(ls $1/../*/span | wc -l) -ge 2 ] && break; sleep 0.05; done
sleep 0.3  # in which no third one begins
date +%s.%N >>$1/span
echo "E: no"
"""
"""Ends once two have begun."""


@pytest.fixture
def ending(tmp_path, monkeypatch):
    """Returns a function that makes the directory of a stand-in for a run, which ends by a shell's command."""
    monkeypatch.setattr(pool, "RUN", ("bash", "-c", SCRIPT, "run"))

    def make(name, command):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "end").write_text(command)
        return directory

    return make


def test_no_more_run_at_once_than_there_are_slots_and_each_has_its_device(ending):
    """And one fails without the others."""
    runs = [ending(str(i), f"{TOGETHER}exit {int(i == 1)}") for i in range(4)]
    made = Pool(runs, slots(["3", "GPU-x"], 2))
    made.run()
    assert [made.codes[run] for run in runs] == [0, 1, 0, 0]
    assert made.failures == [f"1: E: no (exit status 1), see {runs[1] / 'log.txt'}"]
    assert made.unfinished == []
    spans = sorted((run / "span").read_text().split() for run in runs)
    begins, devices, ends = zip(*spans, strict=True)
    assert begins[1] < min(ends) < begins[2], "two at once"
    assert set(devices[:2]) == set(devices[2:]) == {"3", "GPU-x"}


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])
def test_a_run_that_dies_without_a_word_is_noted_as_failed(ending, name):
    run = ending("a", f"kill -{name} $$")
    Pool([run], [{}]).run()
    status = json.loads((run / "status.json").read_text())
    assert status["run/status"] == "failed"
    assert f"killed by {name}" in status["run/error"]
