"""Noise of either kind is a function of its key alone, fair and independent."""

import numpy as np
import pytest
import torch

from zo.noise import NOISES, NoiseKey, engine, philox

KEY = NoiseKey(seed=7, stream=0, step=3, direction=1)


@pytest.mark.parametrize(
    "other",
    [
        (KEY._replace(seed=8), 0),
        (KEY._replace(seed=7 + 2**32), 0),
        (KEY._replace(stream=1), 0),
        (KEY._replace(step=4), 0),
        (KEY._replace(direction=2), 0),
        (KEY, 1),
        (NoiseKey(KEY.stream, KEY.seed, KEY.step, KEY.direction), 0),
        (NoiseKey(KEY.seed, KEY.stream, KEY.direction, KEY.step), 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("signs", [False, True])
def test_each_part_of_the_key_counts_and_values_are_fair_and_independent(other, noise, signs):
    """Means, and products of neighbours and of other keys' values, are 0 within five standard errors."""
    n, draw = 100_000, engine(noise).draw_
    a, b = (draw(torch.empty(n), *key, signs).double().numpy() for key in ((KEY, 0), other))
    assert not signs or (a * a == 1).all()
    for lag in (0, 1, 2, 31, 32, 127, 128):
        for x, y in ((a[lag:], b), (b[lag:], a), (a[lag:], a if lag else np.ones(n))):
            assert abs(np.mean(x * y[: len(x)])) < 5 / np.sqrt(n)


def test_a_sign_is_a_bit_of_the_word_that_is_documented():
    first = philox.words(KEY, 5, 0, 8)  # 256 signs
    expected = [-1.0 if word >> bit & 1 else 1.0 for word in first.tolist() for bit in range(32)]
    assert philox.signs(KEY, 5, 0, 256).tolist() == expected
    assert philox.signs(KEY, 5, 37, 100).tolist() == expected[37:137]
