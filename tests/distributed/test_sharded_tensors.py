"""Tensors that two processes share: the directions of the tensors in one piece."""

import math
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from tests.support.crowd import gather_results
from zo.distributed.processes import Processes
from zo.optim import OPTIMIZERS, SHARDABLE
from zo.weights.space import ParameterSpace

pytestmark = pytest.mark.process

PLACED = [
    ((6, 4), Shard(0)),
    ((5, 4), Shard(1)),
    ((7,), Shard(0)),  # four values here, three there
    ((3, 5), Replicate()),
    ((1, 3), Shard(0)),  # nothing on the second process
]


METHODS = [n for n, m in OPTIMIZERS.items() if m.config.trains and m.config.replays]
KINDS = (("torch", "merged"), ("philox", "snapshot"))
CASES = [(method, *kind) for method in METHODS for kind in KINDS]
SETTINGS = {"adamezo": {"window": 1}}  # else its first ten steps are MeZO's


def stepped(
    processes: Processes,
    named: list[tuple[str, torch.Tensor]],
    method: str,
    noise: str,
    restore: str,
) -> Any:
    """Makes four steps whose losses are told, not measured; returns θ in one piece, or why there is none."""
    losses = iter([1 + 0.1 * math.sin(i) for i in range(400)])
    how, problem = OPTIMIZERS[method], ""
    try:
        space = ParameterSpace(named, restore, noise=noise)
        optimizer = how.optimizer(space, how.config(**SETTINGS.get(method, {})), lr=1e-2, seed=5)
        for _ in range(4):
            optimizer.step(lambda: next(losses))
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    problem = next(filter(None, processes.exchange(problem)), "")
    return problem or list(space.wholes()[1])


def same_as_whole(processes: Processes) -> list[tuple[str, str, str]]:
    """Returns the methods, noises and policies with which θ ends as with tensors in one piece."""
    mesh, same = init_device_mesh("cpu", (2,)), []
    for case in CASES:
        generator = torch.Generator().manual_seed(1)
        wholes = [torch.randn(shape, generator=generator) for shape, _ in PLACED]
        shared = [
            distribute_tensor(w.clone(), mesh, [p])
            for w, (_, p) in zip(wholes, PLACED, strict=True)
        ]
        parts, one = (
            stepped(processes, [(str(i), t) for i, t in enumerate(ts)], *case)
            for ts in (shared, wholes)
        )
        if not isinstance(parts, str) and all(map(torch.equal, parts, one)):
            same.append(case)
    return same


def test_exactly_the_methods_that_a_run_takes_move_parts_as_they_move_whole_tensors():
    first, second = gather_results(2, same_as_whole, timeout_s=200)
    assert first == second == [case for case in CASES if case[0] in SHARDABLE]
