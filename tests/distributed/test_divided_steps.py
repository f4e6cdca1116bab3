"""A step whose forward passes several processes divide has the bits of one process."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.crowd import gather_results
from tests.support.pairwise import pairwise
from zo.distributed.executor import DividedExecutor
from zo.distributed.processes import Processes
from zo.optim import OPTIMIZERS
from zo.optim.base import NonFiniteError
from zo.weights.executor import Executor
from zo.weights.loss import ClosureLoss
from zo.weights.space import ParameterSpace

EXAMPLES, STEPS, WORLDS = 12, 3, (2, 3, 4)

ZEROTH_ORDER = [n for n, m in OPTIMIZERS.items() if m.config.replays]
DTYPES = ("float32", "bfloat16", "float16")
POLICIES = ("subtract", "merged", "snapshot", "streamed")
KINDS = pairwise(WORLDS, ("torch", "philox"), DTYPES, POLICIES, (1, 2, 3, 4))
CASES = [
    *((name, *kind) for i, name in enumerate(ZEROTH_ORDER) for kind in KINDS[i % 7 :: 7]),
    ("mezo", 4, "philox", "bfloat16", "snapshot", 2, ("n", 3)),
    ("mezo", 3, "torch", "bfloat16", "merged", 1, ("n", 2), ("two_sided", False)),
    ("zo_conservative", 3, "torch", "float32", "merged", 1),
    ("bszo", 4, "philox", "float16", "subtract", 2, ("k", 3), ("two_sided", True)),
    ("bszo", 2, "torch", "bfloat16", "streamed", 1, ("m", 5), ("adaptive_sampling", False)),
    ("lozo", 3, "torch", "bfloat16", "factors", 2, ("n", 2), ("interval", 2)),
    ("lozo", 2, "philox", "float32", "factors", 1),
    ("es", 4, "torch", "float32", "factors", 1, ("directions", "low_rank"), ("n", 10)),
    ("eggroll", 3, "philox", "bfloat16", "factors", 2, ("n", 8), ("rank", 2)),
]
"""Every method with two or three kinds, in which every two of processes, noise, dtype, policy and sharding meet."""


class Loss:
    """Cross entropy of some examples, also in branches; counts its passes."""

    def __init__(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, passes: list[int]):
        self.model, self.x, self.y, self.passes = model, x, y, passes

    def __call__(self) -> float:
        return self.branches(1)[0]

    @torch.no_grad()
    def branches(self, n: int) -> list[float]:
        self.passes.append(n)
        scores = self.model(self.x.repeat(n, 1)).float().chunk(n)
        return [nn.functional.cross_entropy(of_one, self.y).item() for of_one in scores]

    def branch_bytes(self, own: bool) -> int:
        return 1000 if own else 0


def steps(processes: Processes, case: tuple) -> tuple[Any, int]:
    """Returns losses and bits of θ after a few steps, or why there are none, and the passes made here."""
    name, _, noise, precision, restore, shards, *settings = case
    dtype, passes = getattr(torch, precision), []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 4))
        x, y = torch.randn(EXAMPLES, 6).to(dtype), torch.randint(4, (EXAMPLES,))
    model.to(dtype)
    method, size = OPTIMIZERS[name], EXAMPLES // shards
    parts = [
        ClosureLoss(Loss(model, x[i : i + size], y[i : i + size], passes))
        for i in range(0, EXAMPLES, size)
    ]
    whole = shards == processes.world == 1  # nothing is divided
    loss = parts[0] if whole else DividedExecutor(parts.__getitem__, [size] * shards, processes)
    try:
        params = ParameterSpace.of(model, restore, noise)
        params.policy.branch_budget = 12_000  # three passes of four members at most
        config = method.config(**dict(settings))
        optimizer = method.optimizer(params, config, lr=1e-2, seed=5)
        infos = [optimizer.step(loss) for _ in range(STEPS)]
    except (ValueError, NonFiniteError) as error:  # a policy not for this method; Adam in float16
        return str(error), 0
    bits = [
        p.detach().view(torch.uint8).numpy().tobytes() for p in params.gathered(collect=False)[1]
    ]
    return ([info.losses for info in infos], [info.coefficients for info in infos], bits), len(
        passes
    )


def of_worlds(processes: Processes) -> dict[tuple, tuple[Any, int]]:
    """Returns the results of the cases in which this process takes part."""
    found = {}
    for world in WORLDS:
        group = dist.new_group(list(range(world)))
        if processes.rank < world:
            found |= {case: steps(Processes(group), case) for case in CASES if case[1] == world}
    return found


def test_a_step_may_ask_for_no_loss_at_all():
    params = ParameterSpace.of(nn.Linear(2, 2))
    executor = DividedExecutor(lambda _: ClosureLoss(lambda: 0.0), [1], Processes())
    assert executor.measure(params.policy, []) == []


@pytest.mark.parametrize("restore", ["subtract", "merged", "snapshot", "streamed"])
def test_theta_is_measured_where_it_is_when_an_earlier_probe_of_the_step_is_not_yet_undone(restore):
    found = []
    for of in (Executor, lambda loss: DividedExecutor(lambda _: loss, [1], Processes())):
        model, x = nn.Linear(3, 1), torch.ones(2, 3)
        nn.init.ones_(model.weight), nn.init.ones_(model.bias)
        method, params = OPTIMIZERS["zo_conservative"], ParameterSpace.of(model, restore)
        optimizer = method.optimizer(params, method.config(), lr=0.1, seed=1)
        loss = ClosureLoss(lambda model=model, x=x: model(x).square().mean().item())
        found.append((loss(), [optimizer.step(of(loss)).losses for _ in range(2)]))
    (start, undivided), (_, divided) = found
    assert divided == undivided
    assert undivided[0][2] == pytest.approx(start, rel=1e-6)


@pytest.mark.process
def test_two_to_four_processes_give_the_bits_of_one_with_its_passes():
    answers = gather_results(max(WORLDS), of_worlds, timeout_s=500)
    stopped = 0
    for case in CASES:
        one, passes = steps(Processes(), case)
        stopped += isinstance(one, str)
        several = [answer[case] for answer in answers[: case[1]]]
        assert [found for found, _ in several] == [one] * case[1], case
        assert sum(made for _, made in several) == passes, case
    assert stopped < 0.2 * len(CASES)
