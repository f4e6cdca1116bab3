"""Time of work: wall time on a CPU; on a GPU what its stream has passed, without a wait."""

import time

import pytest
import torch

from zo.weights.space import ParameterSpace
from zo.weights.stopwatch import Stopwatch


def test_a_cpu_is_timed_by_the_wall():
    watch = Stopwatch(["cpu"])
    for _ in range(2):
        with watch.running():
            time.sleep(0.02)
    time.sleep(0.05)
    assert 0.04 <= watch.seconds < 0.09


def test_a_space_counts_its_passes():
    space = ParameterSpace([("p", torch.zeros(1000))])
    assert space.seconds == 0.0
    with space.timed():
        time.sleep(0.02)
    assert 0.02 <= space.seconds < 0.05


@pytest.mark.gpu
def test_a_gpu_times_its_own_work():
    """A matrix product takes as long by the stopwatch as between two waits, however long its launch took."""
    device = torch.device("cuda")
    a = torch.randn(4096, 4096, device=device)
    (a @ a).sum().item()
    watch = Stopwatch([str(device)])
    start = time.perf_counter()
    with watch.running():
        for _ in range(20):
            a @ a
    launched = time.perf_counter() - start
    torch.cuda.synchronize()
    wall = time.perf_counter() - start
    assert launched < 0.5 * wall
    assert watch.seconds == pytest.approx(wall, rel=0.1)
