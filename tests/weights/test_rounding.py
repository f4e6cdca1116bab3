"""Updates that are rounded at random: one of two neighbours, right in the mean, the same bits when made again.

Or compensated: θ and what it lost are, together, the float32 weights, bit for bit.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.noise.test_philox import ENGINES, same_bits
from tests.support.pairwise import rotated
from tests.support.quadratic import ZEROTH_ORDER, Quadratic, same, start
from zo.noise import (
    NOISES,
    PERTURBATION,
    ROUNDING,
    SUBSPACE,
    Move,
    NoiseKey,
    engine,
    philox,
)
from zo.optim import OPTIMIZERS
from zo.weights.directions import Gaussian, LowRank
from zo.weights.space import ParameterSpace
from zo.weights.updates import LinearUpdate

HALVES = [torch.bfloat16, torch.float16]
KEY = NoiseKey(seed=5, stream=ROUNDING, step=2, direction=0)
Z = NoiseKey(seed=5, stream=PERTURBATION, step=2, direction=0)
DIGITS = {torch.bfloat16: 8, torch.float16: 11}
SMALLEST = {torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}
PHILOX = engine("philox")


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return PHILOX.add_(torch.empty_like(x, dtype=dtype), x, Move(0, [], rounding=KEY))


EXAMPLES = [1 + 2.0**-9, -1.2345, 3.0e-3, 2.0**-14 * 0.999, 2.0**-15 * 1.0301, 5.3 * 2.0**-24]
EXAMPLES += [-0.9 * 2.0**-24, 1e-38, 3.3 * 2.0**-133, -0.4 * 2.0**-133, 65520, -65520, 3.396e38]


@pytest.mark.parametrize("x", EXAMPLES)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_number_becomes_one_of_its_neighbours_and_is_right_in_the_mean(dtype, x):
    """Over 100,000 draws, within five standard errors; normal and subnormal numbers, and beyond the largest."""
    n, x = 100_000, float(np.float32(x))
    unit = max(2.0 ** (np.frexp(abs(x))[1] - DIGITS[dtype]), SMALLEST[dtype])
    below = np.floor(x / unit) * unit
    around = torch.tensor([below, below + unit], dtype=torch.float64).to(dtype)
    share = (x - below) / unit if around[0] < around[1] else 1.0
    got = rounded(torch.full((n,), x), dtype)
    ups = int((got == around[1]).sum())
    assert ups == n or int((got == around[0]).sum()) == n - ups
    assert abs(ups - n * share) < 5 * np.sqrt(n * share * (1 - share)) + n * 2.0**-24


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("by", "device"), ENGINES)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_engines_round_to_nearest_as_torch_and_at_random_as_the_reference(by, device, dtype):
    """All 65,536 numbers, which stay, every boundary between two, and what lies just beside it."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    numbers = every.double()[every.isfinite()].sort().values
    middle, infinity = ((numbers[1:] + numbers[:-1]) / 2).float(), torch.tensor(torch.inf)
    beside = middle.nextafter(infinity), middle.nextafter(-infinity)
    x = torch.cat([every.float(), middle, *beside, torch.tensor([65519.99, 65520.0, 3.4e38])])
    reference = philox.rounded_bfloat16 if dtype == torch.bfloat16 else philox.rounded_float16
    bits = reference(x.numpy(), philox.words(KEY, 3, 9, len(x))).view(np.int16)
    at_random, nearest = (torch.empty(len(x), dtype=dtype, device=device) for _ in range(2))
    by.add_(at_random, x.to(device), Move(3, [], start=9, rounding=KEY))
    assert same_bits(at_random, torch.from_numpy(bits).view(dtype))
    assert same_bits(at_random[: len(every)], every)
    by.add_(nearest, x.to(device), Move(0, []))
    assert same_bits(nearest, x.to(dtype))


@pytest.mark.parametrize(
    "z", [Gaussian(Z, PHILOX), LowRank(Z, Z._replace(stream=SUBSPACE), 1, 1.0, PHILOX)]
)
def test_an_update_is_rounded_at_random_and_a_probe_to_nearest(z):
    """A thousandth of a unit in the last place: nearest never sees it, an update one time in a thousand."""
    start, terms = torch.full((300, 70), 0.75).bfloat16(), [(1e-3 * 2.0**-8, z)]
    space = ParameterSpace([("w", start.clone())], "snapshot", (), "philox", "stochastic")
    with space.policy.excursion() as probe:
        probe.to(terms)
        assert torch.equal(space.local[0], start)
    space.apply_update(LinearUpdate(terms))  # without a key it is no update
    assert torch.equal(space.local[0], start)
    space.apply_update(LinearUpdate(terms), 0.0, KEY)
    assert 4 < (space.local[0] != start).sum() < 60  # of 21,000; 17 or 13 are expected


def masters(space: ParameterSpace) -> list[Tensor]:
    """p + c, float32."""
    return [p.float() + c for p, c in zip(space.local, space.residuals, strict=True)]


def optimizer(name: str, loss: Quadratic):
    keeps = hasattr(OPTIMIZERS[name.split()[0]].config, "state_dtype")
    settings = {"state_dtype": "float32"} if keeps else {}
    settings |= {} if name.startswith("bszo") else {"weight_decay": 0.1}
    return start(name, loss, lr=1e-3, **settings | {"eps": 1e-2})


@pytest.mark.parametrize(("name", "dtype", "noise"), rotated(ZEROTH_ORDER, HALVES, NOISES), ids=str)
def test_with_an_exact_restore_it_is_mixed_precision_training(name, dtype, noise):
    """p + c are the weights of a float32 run that is fed the same records, and p those weights rounded."""
    loss = Quadratic(dtype, "snapshot", "compensated", noise)
    full = Quadratic(restore="snapshot", noise=noise)
    opt, replayed = optimizer(name, loss), optimizer(name, full)
    torch._foreach_copy_(full.params.local, masters(loss.params))
    for _ in range(12):
        replayed.advance(opt.step(loss).coefficients)
    assert same(masters(loss.params), full.params.local)
    assert same(loss.params.local, [p.to(dtype) for p in full.params.local])


@pytest.mark.parametrize("restore", ["subtract", "merged"])
@pytest.mark.parametrize("noise", NOISES)
def test_a_probe_and_an_update_of_nothing_leave_the_residual_alone(restore, noise):
    """c is three quarters of the unit below 1, to which the way back leads: rounding p + c again would move p."""
    theta = ParameterSpace([("w", torch.ones(64).bfloat16())], restore, (), noise, "compensated")
    (c,), (p,) = theta.residuals, theta.local
    c.fill_(0.75 * 2.0**-8)
    p.fill_(1 - 2.0**-8)
    was, z = c.clone(), Gaussian(Z, engine(noise))
    with theta.policy.excursion() as probe:
        probe.to([(2.0**-12, z)])  # lost to nearest, each time
    theta.apply_update(LinearUpdate([]), 0.0, KEY)
    theta.policy.finish_restore()
    assert torch.equal(c, was)
    assert p.eq(1 - 2.0**-8).all()
