"""Time of work: wall time on a CPU; on a GPU what its stream has passed, without a wait."""

import time

import pytest
import torch

from zo.weights.space import ParameterSpace
from zo.weights.stopwatch import Stopwatch


class Stream:
    """A GPU's queue whose clock stands still until it is told to go on."""

    def __init__(self):
        self.launched_ms = 0.0
        self.done_ms = 0.0

    def launch(self, ms: float) -> None:
        self.launched_ms += ms


@pytest.fixture
def stream(monkeypatch):
    stream = Stream()

    class Event:
        def __init__(self, enable_timing=False):
            assert enable_timing

        def record(self, on):
            assert on is stream
            self.at_ms = stream.launched_ms

        def query(self):
            return self.at_ms <= stream.done_ms

        def elapsed_time(self, end):
            assert self.query()
            assert end.query()
            return end.at_ms - self.at_ms

        def synchronize(self):
            raise AssertionError("a stopwatch must not wait")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return stream


def test_a_cpu_is_timed_by_the_wall():
    watch = Stopwatch(["cpu"])
    for _ in range(2):
        with watch.running():
            time.sleep(0.02)
    time.sleep(0.05)
    assert 0.04 <= watch.seconds < 0.09


def test_a_gpu_is_timed_by_its_stream_and_not_waited_for(stream):
    watch = Stopwatch(["cuda:0"])
    stream.launch(5)  # somebody else's
    for ms in (10, 20):
        with watch.running():
            stream.launch(ms)
        stream.launch(7)
    assert watch.seconds == 0.0
    stream.done_ms = 16
    assert watch.seconds == pytest.approx(0.010)
    assert watch.seconds == pytest.approx(0.010), "a piece counts once"
    stream.done_ms = 100
    assert watch.seconds == pytest.approx(0.030)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_work_that_fails_is_counted(device, stream):
    watch = Stopwatch([device])

    def fail():
        time.sleep(0.01)
        stream.launch(10)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"), watch.running():
        fail()
    stream.done_ms = 10
    assert watch.seconds >= 0.01


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
