"""Steps of a small network whose forward passes processes divide."""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from zo.distributed.loss import DividedLoss
from zo.distributed.processes import Processes
from zo.optim import OPTIMIZERS
from zo.optim.base import NonFiniteError
from zo.weights.space import ParameterSpace

EXAMPLES, STEPS = 12, 3


class Case(NamedTuple):
    """What is tried."""

    method: str
    noise: str
    dtype: str
    restore: str
    shards: int
    settings: tuple[tuple[str, Any], ...] = ()


class Loss:
    """Cross entropy of some examples, also in branches."""

    def __init__(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor):
        self.model, self.x, self.y = model, x, y

    def __call__(self) -> float:
        return self.branches(1)[0]

    @torch.no_grad()
    def branches(self, n: int) -> list[float]:
        scores = self.model(self.x.repeat(n, 1)).float().chunk(n)
        return [F.cross_entropy(of_one, self.y).item() for of_one in scores]


def steps(processes: Processes, case: Case) -> tuple[Any, ...]:
    """Returns losses and bits of θ after a few steps."""
    dtype = getattr(torch, case.dtype)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 4))
        x, y = torch.randn(EXAMPLES, 6).to(dtype), torch.randint(4, (EXAMPLES,))
    model.to(dtype)
    method = OPTIMIZERS[case.method]
    config = method.config(**dict(case.settings))
    try:
        params = ParameterSpace.of(model, case.restore, case.noise)
        optimizer = method.optimizer(params, config, lr=1e-2, seed=5)
    except ValueError as error:  # the method does not go with the policy
        return (str(error),)
    size = EXAMPLES // case.shards
    parts = [Loss(model, x[i : i + size], y[i : i + size]) for i in range(0, EXAMPLES, size)]
    loss = DividedLoss(parts.__getitem__, [size] * case.shards, processes)
    try:
        infos = [optimizer.step(loss) for _ in range(STEPS)]
    except NonFiniteError as error:  # Adam's moments in float16
        return (str(error),)
    bits = [p.detach().view(torch.uint8).numpy().tobytes() for p in params.parts()[1]]
    return [info.losses for info in infos], [info.record for info in infos], bits


def of_worlds(processes: Processes, worlds: list[int], cases: list[Case]) -> dict[Any, Any]:
    """Returns the results of each case in each number of processes in which this process takes part."""
    found: dict[Any, Any] = {}
    for world in worlds:
        group = dist.new_group(list(range(world)))
        if processes.rank < world:
            divided = Processes(group)
            found |= {(case, world): steps(divided, case) for case in cases}
    return found
