"""What a run on several processes says at its start."""

from types import SimpleNamespace

import pytest
import torch

from zo.run import dist_checks

HERE = torch.backends.cpu.get_cpu_capability()


@pytest.mark.parametrize(("levels", "said"), [([HERE, "AVX9"], True), ([HERE, HERE], False)])
def test_processes_that_round_differently_are_named(levels, said):
    processes = SimpleNamespace(world=2, exchange=lambda level: levels)
    params = SimpleNamespace(shards=[1])
    assembly = SimpleNamespace(device=torch.device("cpu"), params=params)
    notes = [*dist_checks.notes(processes, None, SimpleNamespace(assembly=assembly))]
    assert any("AVX9" in note and "round differently" in note for note in notes) == said
