"""Random signs: one bit each, the same from every Philox engine and for any part; and torch's generator's."""

import numpy as np
import pytest
import torch

from tests.noise.test_philox import (
    KEY,
    same_bits,
    some,
)
from zo.noise import NOISES, engine, philox
from zo.weights.directions import Preconditioned, Rademacher
from zo.weights.space import ParameterSpace


def test_a_sign_is_a_bit_of_the_word_that_is_documented():
    first = philox.words(KEY, 5, 0, 8)  # 256 signs
    expected = [-1.0 if word >> bit & 1 else 1.0 for word in first.tolist() for bit in range(32)]
    assert philox.signs(KEY, 5, 0, 256).tolist() == expected
    assert philox.signs(KEY, 5, 37, 100).tolist() == expected[37:137]


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
