"""Sharded weights, FSDP2's or anybody's: two processes that hold parts move them as one process moves the whole."""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import zo
from tests.support.crowd import gather_results
from zo.distributed.processes import Processes
from zo.library import METHODS
from zo.optim import OPTIMIZERS, SHARDABLE
from zo.weights.space import ParameterSpace

pytestmark = pytest.mark.process

IDS = torch.arange(16).reshape(4, 4)
POLICIES = "merged", "snapshot"


def built(shard: str) -> nn.Module:
    """Returns a model; `layers` shards its layers and then the rest, `root` all at once.

    Of one row there is nothing on the second process, and of 15 it has fewer.
    """
    torch.manual_seed(0)
    narrow = nn.Linear(15, 1), nn.Linear(1, 20)
    layers = nn.Embedding(20, 16), nn.Linear(16, 15), nn.LayerNorm(15), *narrow
    model = nn.Sequential(*layers)
    if shard == "layers":
        for layer in layers[1:]:
            fully_shard(layer, mesh=init_device_mesh("cpu", (2,)), reshard_after_forward=False)
    if shard:
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    return model


def trained(shard: str, rows: slice, name: str = "bszo", **options: Any) -> Any:
    """Returns losses and bits of the weights after three steps on some rows, or the sentence that stopped it."""
    model, calls = built(shard), []
    model.register_forward_hook(lambda *_: calls.append(1))

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(IDS[rows])[:, :-1].flatten(0, 1), IDS[rows, 1:].flatten())

    try:
        optimizer = zo.optimizer(name, model, lr=1e-2, **options)
        losses = [optimizer.step(loss) for _ in range(3)]
    except ValueError as error:
        return str(error)
    assert len(calls) == 2 + 3 * optimizer.method.forwards_per_step
    assert isinstance(model, FSDPModule) == bool(shard)
    wholes = optimizer.method.params.wholes()[1]
    return losses, [t.detach().numpy().tobytes() for t in wholes]


def cases(processes: Processes) -> dict[Any, Any]:
    """Returns what each case gives on two processes beside what it should give."""
    found: dict[Any, Any] = {}
    for i, name in enumerate(SHARDABLE):
        how = {"restore": POLICIES[i % 2], "noise": "torch" if i % 3 else "philox"}
        for shard in ("layers", "root"):
            several, one = (trained(of, slice(4), name, **how) for of in (shard, ""))
            found[name, shard] = several, one
    half = slice(2 * processes.rank, 2 * processes.rank + 2)
    group = dist.group.WORLD
    found["own parts"] = tuple(trained(of, half, group=group) for of in ("layers", ""))
    found["other batches"] = trained("layers", half)
    found["conmezo"] = trained("layers", slice(4), "conmezo")
    found["streamed"] = trained("layers", slice(4), restore="streamed")
    found["record"] = trained("layers", slice(4), record="run.zo")
    return found


def test_fully_shard_gives_the_bits_of_one_process():
    first, second = gather_results(2, cases)
    assert first == second
    refused = {"other batches": "need the same mini-batch, or group="}
    refused |= {"conmezo": "cannot move sharded weights; one of mezo, "}
    refused |= {"streamed": "0.weight is sharded; snapshot or merged", "record": "whole ones"}
    for name, why in refused.items():
        assert why in first.pop(name)
    for case, (several, one) in first.items():
        assert several == one, case
        assert len(set(several[0])) == 3, case


PLACED = [
    ((6, 4), Shard(0)),
    ((5, 4), Shard(1)),
    ((7,), Shard(0)),  # four values here, three there
    ((3, 5), Replicate()),
    ((1, 3), Shard(0)),  # nothing on the second process
]

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
