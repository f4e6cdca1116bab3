"""Tensors that two processes share: the directions of the tensors in one piece."""

import math
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from tests.support.crowd import gather_results
from zo.distributed.processes import Processes
from zo.noise import NoiseKey
from zo.optim import OPTIMIZERS, SHARDABLE
from zo.weights.directions import Gaussian, LowRank
from zo.weights.space import ParameterSpace

pytestmark = pytest.mark.process

KEY = NoiseKey(seed=3, stream=0, step=0, direction=0)
PLACED = [
    ((6, 4), Shard(0)),
    ((5, 4), Shard(1)),
    ((7,), Shard(0)),  # four values here, three there
    ((3, 5), Replicate()),
    ((1, 3), Shard(0)),  # nothing on the second process
]


def moved(processes: Processes, noise: str) -> tuple[list[bool], list[tuple[int, ...]], str, str]:
    """Moves sharded and whole tensors; returns which are the same, the local shapes, and two refusals."""
    mesh = init_device_mesh("cpu", (2,))
    generator = torch.Generator().manual_seed(1)
    wholes = [torch.randn(shape, generator=generator) for shape, _ in PLACED]
    shared = [distribute_tensor(w, mesh, [p]) for w, (_, p) in zip(wholes, PLACED, strict=True)]
    named = [(str(i), t) for i, t in enumerate(shared)]
    parts = ParameterSpace(named, "merged", noise=noise)
    one = ParameterSpace([(str(i), t) for i, t in enumerate(wholes)], "merged", noise=noise)
    assert parts.numel == one.numel
    for space in (parts, one):
        space.add_([(0.5, Gaussian(KEY, space.engine))])
        space.add_([(c, Gaussian(KEY._replace(direction=1), space.engine)) for c in (0.3, -1.7)])
    same = [torch.equal(t.full_tensor(), w) for t, w in zip(shared, one.tensors, strict=True)]
    refused = [
        _refusal(lambda: ParameterSpace(named, "streamed", noise=noise)),
        _refusal(lambda: parts.add_([(1.0, LowRank(KEY, KEY, 2, engine=parts.engine))])),
    ]
    return same, [tuple(t.shape) for t in parts.tensors], *refused


def _refusal(call) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("noise", ["torch", "philox"])
def test_processes_move_their_parts_along_the_direction_of_the_whole(noise):
    first, second = gather_results(2, moved, noise)
    assert first[0] == second[0] == [True] * len(PLACED)
    assert first[1] == [(3, 4), (5, 2), (4,), (3, 5), (1, 3)]
    assert second[1] == [(3, 4), (5, 2), (3,), (3, 5), (0, 3)]
    assert "0 is sharded; snapshot or merged move it" in first[2]
    assert "one number per value alone" in first[3]


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
