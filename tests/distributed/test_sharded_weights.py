"""Sharded weights, FSDP2's or anybody's: two processes that hold parts move them as one process moves the whole."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import zo
from tests.support.crowd import gather_results
from zo.distributed.processes import Processes
from zo.optim import SHARDABLE

pytestmark = pytest.mark.process

IDS = torch.arange(16).reshape(4, 4)
POLICIES = "merged", "snapshot"
SETTINGS = {"adamezo": {"window": 1}}  # else its first ten steps are MeZO's
PLACED = [
    ((6, 4), Shard(0)),
    ((5, 4), Shard(1)),
    ((7,), Shard(0)),  # four values here, three there
    ((3, 5), Replicate()),
    ((1, 3), Shard(0)),  # nothing on the second process
]


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


def trained(params: Any, loss: Callable[[], Any], name: str = "bszo", **options: Any) -> Any:
    """Returns losses and bits of the weights after three steps, or the sentence that stopped it."""
    try:
        optimizer = zo.optimizer(name, params, lr=1e-2, **SETTINGS.get(name, {}), **options)
        losses = [optimizer.step(loss) for _ in range(3)]
    except ValueError as error:
        return str(error)
    return losses, [t.detach().numpy().tobytes() for t in optimizer.method.params.gathered()[1]]


def fit(
    shard: str,
    rows: slice = slice(4),
    name: str = "bszo",
    given: str = "model",
    partial: bool = False,
    **options: Any,
) -> Any:
    """Trains the model that `built` returns on some rows; a partial loss is a sum of the processes' halves."""
    model = built(shard)
    if given == "keeps a weight":
        model[0].kept, given = torch.randn(20, 16), "model"
        model[0].register_forward_hook(lambda *_: model[0].kept[IDS[rows]])

    def loss() -> torch.Tensor:
        found = F.cross_entropy(model(IDS[rows])[:, :-1].flatten(0, 1), IDS[rows, 1:].flatten())
        mesh = init_device_mesh("cpu", (2,))
        return DTensor.from_local(found / 2, mesh, [Partial()]) if partial else found

    if given == "tensors and model":
        options["model"] = model
    return trained(model if given == "model" else list(model.parameters()), loss, name, **options)


def move(placed: bool, name: str, **options: Any) -> Any:
    """Moves tensors, placed in other ways than FSDP's or whole, by losses that are told, not measured."""
    torch.manual_seed(1)
    mesh, tensors = init_device_mesh("cpu", (2,)), []
    for shape, placement in PLACED:
        whole = torch.randn(shape)
        tensors.append(distribute_tensor(whole, mesh, [placement]) if placed else whole)
    losses = iter([1 + 0.1 * math.sin(i) for i in range(400)])
    told = nn.ParameterList(tensors)
    return trained(told, lambda: next(losses), name, check_closure=False, **options)


def cases(processes: Processes) -> dict[Any, Any]:
    """Returns what each case gives on two processes beside what it should give."""
    found: dict[Any, Any] = {}
    for i, name in enumerate(SHARDABLE):
        how = {"restore": POLICIES[i % 2], "noise": "torch" if i % 3 else "philox"}
        found[name, "placed"] = [move(placed, name, **how) for placed in (True, False)]
        for shard in ("layers", "root"):
            found[name, shard] = [fit(of, name=name, **how) for of in (shard, "")]
    half = slice(2 * processes.rank, 2 * processes.rank + 2)
    found["own parts"] = [fit(of, half, group=dist.group.WORLD) for of in ("layers", "")]
    found["other batches"] = fit("layers", half)
    found["conmezo"] = fit("layers", name="conmezo")
    found["streamed"] = fit("layers", restore="streamed")
    found["tensors alone"] = fit("layers", given="tensors")
    found["tensors"] = [fit(of, given="tensors and model") for of in ("layers", "")]
    found["keeps a weight"] = fit("layers", given="keeps a weight")
    found["partial loss"] = [fit("layers", partial=partial) for partial in (True, False)]
    found["a group of parts"] = move(True, "bszo", group=dist.group.WORLD)
    found["data parallel"] = trained(DistributedDataParallel(built("")), lambda: 0.0)
    found["record"] = fit("layers", record="run.zo")
    return found


def test_sharded_weights_have_the_bits_of_one_process():
    first, second = gather_results(2, cases)
    assert first == second
    refused = {"other batches": "need the same mini-batch, or group="}
    refused |= {"tensors alone": "give the model, or model=", "data parallel": "give group=, as"}
    refused |= {"a group of parts": "0 is sharded, but not by FSDP2"}
    refused |= {"conmezo": "cannot move sharded weights; one of mezo, "}
    refused |= {"streamed": "0.weight is sharded; snapshot or merged", "record": "whole ones"}
    refused |= {"keeps a weight": "0.weight changes no loss, where kept of its Embedding seems"}
    for name, why in refused.items():
        assert why in first.pop(name)
    for case, (several, one) in first.items():
        assert several == one, case
        assert len(set(several[0])) == 3, case
