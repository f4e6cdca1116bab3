"""Time of work by its kind: a GPU's by what its stream has passed, without a wait."""

import time

import pytest
import torch

from zo.weights.stopwatch import Stopwatch


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


def test_a_piece_within_another_is_not_counted_twice():
    """On a CPU, by the wall; no kind's time is below 0."""
    watch, start = Stopwatch(["cpu"]), time.perf_counter()
    for _ in range(2):
        with watch.running("loss"):
            time.sleep(0.01)
            with watch.running("weights"):
                time.sleep(0.005)
    wall = time.perf_counter() - start
    loss, weights = watch.seconds("loss"), watch.seconds("weights")
    assert loss >= 0.02
    assert weights >= 0.01
    assert loss + weights <= wall
