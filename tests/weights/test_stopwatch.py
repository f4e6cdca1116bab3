"""Time of work: wall time on a CPU; on a GPU what its stream has passed, without a wait."""

import time

import pytest
import torch

from zo.weights.space import ParameterSpace
from zo.weights.stopwatch import Stopwatch


def test_a_space_times_its_passes_by_the_wall_on_a_cpu():
    space = ParameterSpace([("p", torch.zeros(1000))])
    assert space.seconds == 0.0
    for _ in range(2):
        with space.timed():
            time.sleep(0.02)
    time.sleep(0.05)
    assert 0.04 <= space.seconds < 0.09


@pytest.mark.gpu
def test_a_gpu_times_its_own_work():
    """A matrix product takes as long by the stopwatch as between two waits, however long its launch took."""
    device = torch.device("cuda")
    a = torch.randn(4096, 4096, device=device)
    (a @ a).sum().item()
    watch, start = Stopwatch([str(device)]), time.perf_counter()
    with watch.running():
        for _ in range(20):
            a @ a
    launched = time.perf_counter() - start
    torch.cuda.synchronize()
    wall = time.perf_counter() - start
    assert launched < 0.5 * wall
    assert watch.seconds == pytest.approx(wall, rel=0.1)
