"""What the device does at best: copies, matrix products, normals. Measured in the run that the estimates are for.

On a CPU the pieces take milliseconds and the best of many counts, so that other work on the machine matters little.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from zo.optim import OPTIMIZERS
from zo.weights.space import ParameterSpace

REPEATS = 50


def bandwidth(device: torch.device) -> float:
    """Returns bytes per second, those read and those written, of a copy far larger than any cache."""
    values = 2**30 if device.type == "cuda" else 2**25
    source = torch.ones(values, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / best(lambda: target.copy_(source), device)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Returns operations per second of a square matrix product."""
    n = 8192 if device.type == "cuda" else 768
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    return 2 * n**3 / best(lambda: a @ b, device)


def normal_rate(device: torch.device, noise: str) -> float:
    """Returns float32 normals per second, drawn where a cache holds them on a CPU.

    Args:
        device: Where they are drawn.
        noise: What draws.
    """
    values = 2**27 if device.type == "cuda" else 2**17
    p = torch.zeros(values, device=device)
    method = OPTIMIZERS["mezo"]
    optimizer = method.optimizer(
        ParameterSpace([("p", p)], noise=noise), method.config(), lr=1.0, seed=0
    )
    direction = optimizer.direction(0)
    times = 1 if device.type == "cuda" else 4

    def draw() -> None:
        for _ in range(times):
            direction.sample(0, p)

    return times * values / best(draw, device)


def best(work: Callable[[], object], device: torch.device) -> float:
    """Returns the shortest of several times, in seconds, after one that does not count."""
    return min([clock(work, device)[0] for _ in range(REPEATS + 1)][1:])


def clock(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Returns seconds and processor seconds of work, on a GPU until it has ended there."""
    wait(device)
    start, busy = time.perf_counter(), time.process_time()
    work()
    wait(device)
    return time.perf_counter() - start, time.process_time() - busy


def wait(device: torch.device) -> None:
    """Returns when a GPU has done what it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
