"""A model on disk trains in less memory than it takes, with the bits of the same model in memory, in bounded time."""

import pytest

from benchmarks.offload import measured
from benchmarks.steps.cases import SHAPES

SMALL = [
    *SHAPES["opt-125m"],
    "model.architecture.num_hidden_layers=6",
    "model.architecture.vocab_size=9000",
]


def check_same(found) -> None:
    for key in ("losses", "weights hash"):
        assert found["disk"][key] == found["memory"][key]


@pytest.mark.process
def test_a_model_on_disk_needs_the_memory_of_two_modules(tmp_path):
    """Its process needs less than one with the model in memory, by the model without its two largest modules."""
    found = measured(tmp_path, SMALL, limit=4.0, turns=0, settings=["optimizer=mezo"])
    check_same(found)
    largest = (9000 + 3072) * 768 * 4
    spared = (found["bytes"] - largest) / 2**30
    peaks = {where: found[where]["anonymous, GiB"] for where in ("memory", "disk")}
    assert peaks["disk"] < peaks["memory"] - 0.8 * spared


@pytest.mark.slow
def test_a_model_of_5_gb_trains_from_disk_in_2_gib(tmp_path):
    """OPT-1.3B's shape; 11 GB of disk and 9 GB of memory, for the one in memory, are needed."""
    found = measured(tmp_path, SHAPES["opt-1.3b"], limit=2.0, turns=3, settings=["optimizer=mezo"])
    check_same(found)
    assert found["bytes"] > 5.2e9
    assert found["disk"]["resident, GiB"] < 2.0
    assert found["disk"]["ratio"] <= 1.3
