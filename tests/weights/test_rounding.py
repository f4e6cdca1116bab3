"""Updates that are rounded at random: one of two neighbours, right in the mean, the same bits when made again."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.noise.test_philox import ENGINES, same_bits
from zo.noise import PERTURBATION, ROUNDING, SUBSPACE, Move, NoiseKey, PhiloxEngine, engine, philox
from zo.weights.directions import Gaussian, LowRank
from zo.weights.space import ParameterSpace

HALVES = [torch.bfloat16, torch.float16]
KEY = NoiseKey(seed=5, stream=ROUNDING, step=2, direction=0)
Z = NoiseKey(seed=5, stream=PERTURBATION, step=2, direction=0)
DIGITS = {torch.bfloat16: 8, torch.float16: 11}
SMALLEST = {torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}
philox_engine = engine("philox")
assert isinstance(philox_engine, PhiloxEngine)


def rounded(x: Tensor, dtype: torch.dtype, key: NoiseKey = KEY, by=philox_engine) -> Tensor:
    return by.round_(torch.empty_like(x, dtype=dtype), x, 0, key)


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
    huge = torch.tensor(
        [torch.inf, -torch.inf, torch.nan] + ([65536.0, 1e38] * (dtype == torch.float16))
    )
    got = rounded(huge, dtype)
    assert got[:2].tolist() == [torch.inf, -torch.inf]
    assert got[2].isnan()
    assert got[3:].isinf().all()


@pytest.mark.parametrize(("by", "device"), ENGINES)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_engines_round_to_the_same_bits(by, device, dtype):
    scale = torch.logspace(-40, 38, 6001)
    x = torch.randn(6001, generator=torch.Generator().manual_seed(1)) * scale
    x[:5] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])
    words = philox.words(KEY, 3, 9, 6001)
    reference = {torch.bfloat16: philox.rounded_bfloat16, torch.float16: philox.rounded_float16}
    bits = torch.from_numpy(reference[dtype](x.numpy(), words).view(np.int16)).view(dtype)
    out = torch.empty(6001, dtype=dtype, device=device)
    assert same_bits(by.round_(out, x.to(device), 3, KEY, start=9), bits)
    theta = x.to(dtype).to(device)
    added = by.add_(torch.empty_like(theta), theta, 3, [(1e-3, Z)], start=9, rounding=KEY)
    total = theta.cpu().float().numpy() + np.float32(1e-3) * philox.normals(Z, 3, 9, 6001)
    bits = torch.from_numpy(reference[dtype](total, words).view(np.int16)).view(dtype)
    assert same_bits(added, bits)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_to_nearest_is_torchs_own_rounding(dtype):
    """Every boundary between two numbers, and what lies just beside it."""
    numbers = every(dtype).float()
    numbers = numbers[numbers.isfinite()].sort().values.double()
    middle = ((numbers[1:] + numbers[:-1]) / 2).float()
    x = torch.cat(
        [
            middle,
            middle.nextafter(torch.tensor(torch.inf)),
            middle.nextafter(-torch.tensor(torch.inf)),
        ]
    )
    x = torch.cat([x, torch.tensor([torch.inf, -torch.inf, torch.nan, 65519.99, 65520.0, 3.4e38])])
    by_cast = x.to(dtype)
    assert isinstance(philox_engine, PhiloxEngine)
    out = torch.empty_like(by_cast)
    philox_engine._add(out, x, Move(0, []))
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
        theta.add_([(tiny, direction)])  # without a key it is no update
        assert all(map(torch.equal, theta.tensors, before))
        theta.add_([(tiny, direction)], 0.0, KEY)
        moved = (theta.tensors[0] != before[0]).sum().item()
        assert 4 < moved < 60  # of 21,000, E|z| or E|uv| a thousandth of the time: 17 or 13
        nearest = space(dtype, "nearest")
        nearest.add_([(tiny, direction)], 0.0, KEY)
        assert all(map(torch.equal, nearest.tensors, before))
