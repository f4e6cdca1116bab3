"""Updates that are rounded at random: one of two neighbours, right in the mean, the same bits when made again.

Or compensated: θ and what it lost are, together, the float32 weights, bit for bit.
"""

from fractions import Fraction

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
from zo.weights.directions import Gaussian, LowRank
from zo.weights.space import ParameterSpace
from zo.weights.updates import LinearUpdate

HALVES = [torch.bfloat16, torch.float16]
KEY = NoiseKey(seed=5, stream=ROUNDING, step=2, direction=0)
Z = NoiseKey(seed=5, stream=PERTURBATION, step=2, direction=0)
DIGITS = {torch.bfloat16: 8, torch.float16: 11}
SMALLEST = {torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}
philox_engine = engine("philox")


def rounded(x: Tensor, dtype: torch.dtype, key: NoiseKey = KEY, by=philox_engine) -> Tensor:
    return by.add_(torch.empty_like(x, dtype=dtype), x, Move(0, [], rounding=key))


def neighbours(x: float, dtype: torch.dtype) -> tuple[float, float]:
    """The numbers of the dtype around x, from its definition; x itself twice if it is one."""
    exponent = np.frexp(abs(x))[1] - DIGITS[dtype]
    unit = max(2.0**exponent, SMALLEST[dtype])
    below = np.floor(x / unit) * unit
    return below, below if below == x else below + unit


def every(dtype: torch.dtype) -> Tensor:
    """All 65,536 numbers."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_what_a_dtype_has_stays(dtype):
    """Every one of its 65,536 numbers, infinities among them; nan stays nan."""
    numbers = every(dtype)
    assert same_bits(rounded(numbers.float(), dtype), numbers)


EXAMPLES = [1 + 2.0**-9, -1.2345, 3.0e-3, 2.0**-14 * 0.999, 2.0**-15 * 1.0301, 5.3 * 2.0**-24]
EXAMPLES += [-0.9 * 2.0**-24, 1e-38, 3.3 * 2.0**-133, -0.4 * 2.0**-133]


@pytest.mark.parametrize("x", EXAMPLES)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_number_becomes_one_of_its_neighbours_and_is_right_in_the_mean(dtype, x):
    """Over 100,000 draws, within five standard errors; normal and subnormal numbers, halfway or not."""
    n, x = 100_000, float(np.float32(x))
    below, above = neighbours(x, dtype)
    got = rounded(torch.full((n,), x), dtype).double()
    assert set(got.tolist()) <= {below, above}
    if below == above:
        return
    p = float((Fraction(x) - Fraction(below)) / (Fraction(above) - Fraction(below)))
    ups = int((got == above).sum())
    assert abs(ups - n * p) < 5 * np.sqrt(n * p * (1 - p)) + n * 2.0**-24


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_beyond_the_largest_number_is_infinity(dtype):
    largest = torch.finfo(dtype).max
    step = largest - float(np.float64(largest) * (1 - 2.0 ** -DIGITS[dtype]))
    halfway = torch.full((100_000,), largest + 0.5 * float(torch.tensor(step).to(dtype)))
    for sign in (1, -1):
        got = rounded(sign * halfway, dtype)
        assert set(got.tolist()) == {sign * largest, sign * torch.inf}
        assert got.isinf().double().mean().item() == pytest.approx(0.5, abs=0.01)
    assert rounded(torch.tensor([65536.0, 1e38]), torch.float16).isinf().all()


@pytest.mark.parametrize(("by", "device"), ENGINES)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_engines_round_to_the_same_bits(by, device, dtype):
    scale = torch.logspace(-40, 38, 6001)
    x = torch.randn(6001, generator=torch.Generator().manual_seed(1)) * scale
    x[:5] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])
    words = philox.words(KEY, 3, 9, 6001)
    reference = philox.rounded_bfloat16 if dtype == torch.bfloat16 else philox.rounded_float16
    bits = torch.from_numpy(reference(x.numpy(), words).view(np.int16)).view(dtype)
    out = torch.empty(6001, dtype=dtype, device=device)
    assert same_bits(by.add_(out, x.to(device), Move(3, [], start=9, rounding=KEY)), bits)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_to_nearest_is_torchs_own_rounding(dtype):
    """Every boundary between two numbers, and what lies just beside it."""
    numbers = every(dtype).float()
    numbers = numbers[numbers.isfinite()].sort().values.double()
    middle = ((numbers[1:] + numbers[:-1]) / 2).float()
    infinity = torch.tensor(torch.inf)
    x = torch.cat([middle, middle.nextafter(infinity), middle.nextafter(-infinity)])
    x = torch.cat([x, torch.tensor([torch.inf, -torch.inf, torch.nan, 65519.99, 65520.0, 3.4e38])])
    by_cast = x.to(dtype)
    out = torch.empty_like(by_cast)
    philox_engine._run(out, x, Move(0, []))
    assert same_bits(out, by_cast)


def space(dtype: torch.dtype, rounding: str = "stochastic") -> ParameterSpace:
    named = [("w", torch.full((300, 70), 0.75, dtype=dtype)), ("b", torch.ones(500, dtype=dtype))]
    return ParameterSpace(named, "snapshot", noise="philox", rounding=rounding)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_an_update_is_rounded_at_random_and_a_probe_to_nearest(dtype):
    """A thousandth of a unit in the last place: nearest never sees it, an update one time in a thousand."""
    tiny = 1e-3 * 2.0 ** -DIGITS[dtype]
    for direction in (
        Gaussian(Z, philox_engine),
        LowRank(Z, Z._replace(stream=SUBSPACE), 1, 1.0, philox_engine),
    ):
        theta = space(dtype)
        before = [t.clone() for t in theta.tensors]
        with theta.excursion() as probe:
            probe.to([(tiny, direction)])
            assert all(map(torch.equal, theta.tensors, before))
        theta.carry_out(LinearUpdate([(tiny, direction)]))  # without a key it is no update
        assert all(map(torch.equal, theta.tensors, before))
        theta.carry_out(LinearUpdate([(tiny, direction)]), 0.0, KEY)
        moved = (theta.tensors[0] != before[0]).sum().item()
        assert 4 < moved < 60  # of 21,000, E|z| or E|uv| a thousandth of the time: 17 or 13
        nearest = space(dtype, "nearest")
        nearest.carry_out(LinearUpdate([(tiny, direction)]), 0.0, KEY)
        assert all(map(torch.equal, nearest.tensors, before))


FLOAT32_STATE = {"mezo_adam", "hizoo", "zo_momentum"}


def masters(space: ParameterSpace) -> list[Tensor]:
    """p + c, float32."""
    return [p.float() + c for p, c in zip(space.tensors, space.residuals, strict=True)]


def optimizer(name: str, loss: Quadratic):
    settings = {"state_dtype": "float32"} if name.split()[0] in FLOAT32_STATE else {}
    settings |= {} if name.startswith("bszo") else {"weight_decay": 0.1}
    return start(name, loss, lr=1e-3, **settings | {"eps": 1e-2})


@pytest.mark.parametrize(("name", "dtype", "noise"), rotated(ZEROTH_ORDER, HALVES, NOISES), ids=str)
def test_with_an_exact_restore_it_is_mixed_precision_training(name, dtype, noise):
    """p + c are the weights of a float32 run that is fed the same records, and p those weights rounded."""
    loss = Quadratic(dtype, "snapshot", "compensated", noise, exempt=("v",))
    full = Quadratic(restore="snapshot", noise=noise, exempt=("v",))
    opt, replayed = optimizer(name, loss), optimizer(name, full)
    torch._foreach_copy_(full.params.tensors, masters(loss.params))
    for _ in range(12):
        replayed.advance(opt.step(loss).record)
    assert same(masters(loss.params), full.params.tensors)
    assert same(loss.params.tensors, [p.to(dtype) for p in full.params.tensors])


@pytest.mark.parametrize("restore", ["subtract", "merged"])
@pytest.mark.parametrize("noise", NOISES)
def test_a_probe_and_an_update_of_nothing_leave_the_residual_alone(restore, noise):
    """c is three quarters of the unit below 1, to which the way back leads: rounding p + c again would move p."""
    theta = ParameterSpace([("w", torch.ones(64).bfloat16())], restore, (), noise, "compensated")
    (c,), (p,) = theta.residuals, theta.tensors
    c.fill_(0.75 * 2.0**-8)
    p.fill_(1 - 2.0**-8)
    was, z = c.clone(), Gaussian(Z, engine(noise))
    with theta.excursion() as probe:
        probe.to([(2.0**-12, z)])  # lost to nearest, each time
    theta.carry_out(LinearUpdate([]), 0.0, KEY)
    theta.settle()
    assert torch.equal(c, was)
    assert p.eq(1 - 2.0**-8).all()
