"""Random signs: one bit each, the same from every Philox engine and for any part; and torch's generator's."""

import numpy as np
import pytest
import torch

from tests.noise.test_philox import (
    BITS,
    DTYPES,
    ENGINES,
    KEY,
    KEYS,
    NUMPY,
    OTHERS,
    interpreted,
    same_bits,
    some,
)
from zo.noise import NOISES, engine, philox
from zo.weights.directions import Preconditioned, Rademacher
from zo.weights.space import ParameterSpace

KINDS = [(dtype, False, False) for dtype in DTYPES]
KINDS += [(torch.float32, False, True), (torch.float16, True, False)]
"""Dtype of θ, whether it is rounded at random, whether z is divided by √H."""


def test_a_sign_is_a_bit_of_the_word_that_is_documented():
    first = philox.words(KEY, 5, 0, 8)  # 256 signs
    expected = [-1.0 if word >> bit & 1 else 1.0 for word in first.tolist() for bit in range(32)]
    assert philox.signs(KEY, 5, 0, 256).tolist() == expected
    assert philox.signs(KEY, 5, 37, 100).tolist() == expected[37:137]


@pytest.mark.parametrize(("other", "device"), OTHERS)
@pytest.mark.parametrize("start", [0, 3, 127, 128, 2**34 - 2100])
def test_engines_draw_the_same_signs(other, device, start):
    drawn = other.rademacher_(torch.empty(2100, device=device), KEY, 5, start)
    assert same_bits(drawn, NUMPY.rademacher_(torch.empty(2100), KEY, 5, start))


@pytest.mark.parametrize(("other", "device"), OTHERS)
@pytest.mark.parametrize(("dtype", "at_random", "scaled"), KINDS, ids=str)
def test_engines_add_the_same_bits(other, device, dtype, at_random, scaled):
    """Eight directions in one pass, a way back before it, decay, H, a start within a block."""
    if interpreted(other) and dtype == torch.bfloat16 and not at_random:
        pytest.skip("the interpreter's cast to bfloat16 cuts off")
    theta = some((1500,), dtype)
    theta[:6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3e-8])
    h = some((1500,), dtype, 1).square().add(0.01) if scaled else None
    terms = [(0.3 * (-0.9) ** j, KEY._replace(direction=j)) for j in range(8)]
    pending = () if interpreted(other) else [(0.1, KEYS[0])]  # which rounds in between
    rounding = BITS if at_random else None

    def added(drawer, on):
        out, scale = theta.to(on), None if h is None else h.to(on)
        given = (5, terms, 0.25, 77, scale, rounding, None, pending, True)
        return drawer.add_(out, out, *given)

    assert same_bits(added(other, device), added(NUMPY, "cpu"))


@pytest.mark.parametrize(("drawer", "device"), ENGINES)
def test_any_part_is_that_part_of_the_whole(drawer, device):
    """What a shard of a tensor draws, or the rows of an embedding."""
    whole = drawer.rademacher_(torch.empty(3000, device=device), KEY, 2)
    moved = drawer.add_(
        torch.zeros_like(whole), torch.zeros_like(whole), 2, [(1.0, KEY)], signs=True
    )
    assert torch.equal(whole, moved)
    for start in (1, 31, 32, 127, 128, 1023, 1025, 2999):
        part = torch.empty(min(1100, 3000 - start), device=device)
        inside = whole[start : start + len(part)]
        assert torch.equal(drawer.rademacher_(part, KEY, 2, start), inside)
        zeros = torch.zeros_like(part)
        assert torch.equal(
            drawer.add_(part, zeros, 2, [(1.0, KEY)], start=start, signs=True), inside
        )
        if interpreted(drawer) and start > 31:
            break
    rows = torch.tensor([3, 79, 0, 3], device=device)
    drawn = drawer.rademacher_(torch.empty(4, 37, device=device), KEY, 2, rows=rows)
    assert torch.equal(drawn, whole[: 80 * 37].view(80, 37)[rows])


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(threads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        drawn = [engine(noise).rademacher_(torch.empty(300_001), KEY, 0) for noise in NOISES]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(
        drawn[NOISES.index("philox")], NUMPY.rademacher_(torch.empty(300_001), KEY, 0)
    )
    again = engine("torch").rademacher_(torch.empty(300_001), KEY, 0)
    assert torch.equal(drawn[NOISES.index("torch")], again)


@pytest.mark.parametrize("noise", NOISES)
def test_signs_are_fair_and_independent(noise):
    """Mean, and products of neighbours, of all 32 bits, of other keys: 0 within five standard errors; squares 1."""
    n = 2**20
    draw = engine(noise).rademacher_
    z = draw(torch.empty(n), KEY, 0).double()
    assert torch.equal(z.square(), torch.ones(n, dtype=torch.float64))
    bits = z.view(-1, 32)
    assert bits.mean(0).abs().max() < 5 / np.sqrt(n / 32)
    pairs = bits.T @ bits / (n / 32) - torch.eye(32, dtype=torch.float64)
    assert pairs.abs().max() < 5.5 / np.sqrt(n / 32)
    for lag in (1, 2, 31, 32, 127, 128):
        assert (z[lag:] * z[:-lag]).mean().abs() < 5 / np.sqrt(n)
    for other in (KEY._replace(step=4), KEY._replace(direction=2), KEY._replace(seed=8)):
        assert (z * draw(torch.empty(n), other, 0)).mean().abs() < 5 / np.sqrt(n)
    assert (z * draw(torch.empty(n), KEY, 1)).mean().abs() < 5 / np.sqrt(n)


def test_a_space_draws_signs_in_the_pass_that_adds(monkeypatch):
    """No direction is made as a tensor of its own."""
    space = ParameterSpace([("w", some((40, 30), torch.bfloat16))], noise="philox")
    signs = torch.from_numpy(philox.signs(KEY, 0, 0, 1200)).view(40, 30)
    expected = (space.tensors[0].float() + 0.5 * signs).bfloat16()
    z = Rademacher(KEY, space.engine)
    assert torch.equal(
        Preconditioned(z, [torch.full((40, 30), 4.0)]).sample(0, space.tensors[0]), signs / 2
    )
    monkeypatch.setattr(Rademacher, "sample", None)
    space.add_([(0.5, z)])
    assert same_bits(space.tensors[0], expected)


def test_float64_weights_move_by_float32_signs():
    space = ParameterSpace([("w", torch.zeros(300, dtype=torch.float64))], noise="philox")
    space.add_([(1e-12, Rademacher(KEY, space.engine))])
    assert torch.equal(
        space.tensors[0], 1e-12 * torch.from_numpy(philox.signs(KEY, 0, 0, 300)).double()
    )
