"""Time of work: wall time on a CPU; on a GPU what its stream has passed, without a wait."""

import time

import pytest
import torch

from zo.weights.space import ParameterSpace
from zo.weights.stopwatch import Stopwatch


def test_a_space_times_its_passes_and_losses_apart_by_the_wall_on_a_cpu():
    space = ParameterSpace([("p", torch.zeros(1000))])
    assert space.seconds == space.measuring_seconds == 0.0
    for _ in range(2):
        with space.measuring():
            time.sleep(0.05)
            with space.timed():
                time.sleep(0.02)
            time.sleep(0.05)
    time.sleep(0.05)
    assert 0.04 <= space.seconds < 0.09
    assert 0.2 <= space.measuring_seconds < 0.25


@pytest.mark.gpu
def test_a_gpu_times_its_own_work():
    """However long its launch took, and though work of another kind is under way when a piece begins."""
    device = torch.device("cuda")
    a = torch.randn(4096, 4096, device=device)
    (a @ a).sum().item()
    watch, start = Stopwatch([str(device)]), time.perf_counter()
    with watch.running("before"):
        for _ in range(20):
            a @ a
    with watch.running("work"):
        for _ in range(10):
            a @ a
        with watch.running("within"):
            for _ in range(20):
                a @ a
    launched = time.perf_counter() - start
    torch.cuda.synchronize()
    wall = time.perf_counter() - start
    assert launched < 0.5 * wall
    spent = [watch.seconds(kind) for kind in ("before", "work", "within")]
    assert spent == pytest.approx([0.4 * wall, 0.2 * wall, 0.4 * wall], rel=0.15)
