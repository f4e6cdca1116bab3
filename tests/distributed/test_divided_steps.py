"""A step whose forward passes several processes divide has the bits of one process."""

import itertools

import pytest
import torch

from tests.support.crowd import alone, gather_results
from tests.support.divided_steps import Case, of_worlds, steps
from zo.distributed.loss import DividedLoss, weighted_mean
from zo.distributed.processes import Processes
from zo.optim import OPTIMIZERS
from zo.weights.space import ParameterSpace

WORLDS = [1, 2, 3, 4]
ZEROTH_ORDER = [n for n, m in OPTIMIZERS.items() if m.config.trains and m.config.replays]
NOISES = ("torch", "philox")
DTYPES = ("float32", "bfloat16", "float16")
POLICIES = ("subtract", "merged", "snapshot", "streamed")
SHARDS = (1, 2, 3, 4)
KINDS = list(itertools.product(NOISES, DTYPES, POLICIES, SHARDS))
ALL = [Case(*of) for of in itertools.product(ZEROTH_ORDER, NOISES, DTYPES, POLICIES, SHARDS)]
VARIANTS = [
    Case("mezo", "philox", "bfloat16", "snapshot", 2, (("n", 3),)),
    Case("mezo", "torch", "bfloat16", "merged", 1, (("n", 2), ("two_sided", False))),
    Case("bszo", "philox", "float16", "subtract", 2, (("k", 3), ("two_sided", True))),
    Case("bszo", "torch", "bfloat16", "streamed", 1, (("m", 5), ("adaptive_sampling", False))),
    Case("lozo", "torch", "bfloat16", "factors", 2, (("n", 2), ("interval", 2))),
    Case("lozo", "philox", "float32", "factors", 4),
]
SAMPLE = [
    *(Case(name, *kind) for i, name in enumerate(ZEROTH_ORDER) for kind in KINDS[5 * i % 41 :: 41]),
    *VARIANTS,
]
"""Every method with two or three kinds, and every kind of noise, dtype, policy and sharding with some methods."""


def differing(cases: list[Case]) -> list[tuple[Case, int]]:
    """Returns the cases and numbers of processes whose losses or weights are not those of one process."""
    answers = gather_results(max(WORLDS), of_worlds, WORLDS, cases, timeout_s=500)
    plain = {case: alone(steps, case) for case in cases}
    assert sum(len(made) > 1 for made in plain.values()) > 0.8 * len(cases)
    return [
        (case, world)
        for case in cases
        for world in WORLDS
        for answer in answers[:world]
        if answer[case, world] != plain[case]
    ]


@pytest.mark.process
def test_one_to_four_processes_give_the_same_bits():
    assert differing(SAMPLE) == []


@pytest.mark.slow
def test_one_to_four_processes_give_the_same_bits_in_every_combination():
    assert differing(ALL) == []


class Twin(Processes):
    """One of two processes, whose twin measures what this one is told."""

    def __init__(self, rank: int, other: list[float]):
        super().__init__()
        self.rank, self.world, self.other = rank, 2, other

    def gather(self, values):
        pair = [list(values), self.other]
        return pair if self.rank == 0 else pair[::-1]


def test_shards_are_added_in_their_order_with_their_weights():
    first = DividedLoss([lambda: 1.0, lambda: 4.0].__getitem__, [3, 1], Twin(0, [4.0]))
    assert first() == 7.0 / 4
    assert weighted_mean([0.1], [3]) == 0.1
    assert weighted_mean([1e16, 1.0, -1e16], [1, 1, 1]) == 0.0


@pytest.mark.parametrize(("rank", "measured"), [(0, [1.0, 2.0]), (1, [3.0])])
@pytest.mark.parametrize("restore", ["snapshot", "merged"])
def test_a_process_measures_its_own_block_of_points_and_goes_to_others_only_if_that_rounds(
    rank, measured, restore, monkeypatch
):
    theta = torch.zeros(1)
    params = ParameterSpace([("w", theta)], restore)
    seen, visited = [], []
    to = type(params.policy).to
    monkeypatch.setattr(
        type(params.policy), "to", lambda self, terms: visited.append(terms) or to(self, terms)
    )
    loss = DividedLoss(
        lambda _: lambda: seen.append(round(float(theta), 5)) or 1.0, [1], Twin(rank, [5.0, 6.0])
    )
    losses = loss.measure(params, [[[(c, One())] for c in (1.0, 2.0, 3.0)]])
    assert seen == measured
    assert losses == ([1.0, 1.0, 5.0] if rank == 0 else [5.0, 6.0, 1.0])
    assert len([terms for terms in visited if terms]) == (
        len(measured) if restore == "snapshot" else 3
    )


class One:
    """The direction of ones."""

    def sample(self, i, p):
        return torch.ones_like(p)
