"""FSDP2: fully_shard divides a model among processes; every method moves it as one process moves the whole."""

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import zo
from tests.support.crowd import free_port, gather_results
from zo.distributed.processes import Processes
from zo.optim import SHARDABLE

pytestmark = pytest.mark.process

IDS = torch.arange(16).reshape(4, 4)
POLICIES = "merged", "snapshot"


def built(shard: str) -> nn.Module:
    """Returns a model; `layers` shards its layers and then the rest, `root` all at once."""
    torch.manual_seed(0)
    layers = nn.Embedding(20, 16), nn.Linear(16, 15), nn.LayerNorm(15), nn.Linear(15, 20)
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


SCRIPT = """
import torch, torch.distributed as dist, zo
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
torch.manual_seed(0)
model, x = torch.nn.Linear(6, 5), torch.randn(4, 6)
sharded, mine = torch.nn.Linear(6, 5), x[2 * dist.get_rank() :][:2]
sharded.load_state_dict(model.state_dict())
fully_shard(sharded, mesh=dist.init_device_mesh("cpu", (2,)))
group = dist.group.WORLD
optimizers = [zo.MeZO(of, lr=1e-2, group=group) for of in (model, sharded)]
for _ in range(5):
    losses = [o.step(lambda: of(mine).square().mean()) for o, of in zip(optimizers, (model, sharded))]
    assert losses[0] == losses[1]
assert torch.equal(sharded.weight.full_tensor(), model.weight)
print("equal", flush=True)
"""


def test_torchrun_starts_a_training_with_fully_shard(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    where = "--nproc-per-node=2", f"--master-port={free_port()}"
    command = [sys.executable, "-m", "torch.distributed.run", *where, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["equal", "equal"]), done.stderr
