"""Noise of either kind is a function of its key alone, and its values are independent standard normals."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from zo.noise import NOISES, Engine, NoiseKey, engine

KEY = NoiseKey(seed=7, stream=0, step=3, direction=1)


@pytest.fixture(params=NOISES)
def drawer(request) -> Engine:
    return engine(request.param)


@pytest.fixture
def draw(drawer):
    def make(
        key: NoiseKey, tensor_index: int = 0, shape: tuple[int, ...] = (1000,)
    ) -> torch.Tensor:
        return drawer.normal_(torch.empty(shape), key, tensor_index)

    return make


class Interruptions(TorchFunctionMode):
    """Before each torch call of this thread another thread makes a draw of its own, to its end."""

    def __init__(self, pool: ThreadPoolExecutor, draw):
        super().__init__()
        self.pool, self.draw = pool, draw
        self.count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += 1
        self.pool.submit(self.draw, KEY._replace(seed=99)).result()
        return function(*args, **(kwargs or {}))


def test_same_key_same_bits_when_another_thread_draws_in_between(draw):
    alone = draw(KEY)
    with ThreadPoolExecutor(1) as pool, Interruptions(pool, draw) as interruptions:
        together = draw(KEY)
    assert interruptions.count >= 1
    assert torch.equal(together, alone)


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
    ids=["seed", "seed_high", "stream", "step", "direction", "tensor", "swap_seed", "swap_step"],
)
def test_each_part_of_the_key_counts_and_neighbours_are_uncorrelated(other, draw):
    n = 100_000
    a = draw(KEY, 0, (n,)).double().numpy()
    b = draw(*other, (n,)).double().numpy()
    assert not np.array_equal(a, b)
    for lag in (0, 1, 2):  # a stream shifted by a value or two would be as bad as the same one
        for x, y in ((a[lag:], b), (b[lag:], a)):
            assert abs(np.mean(x * y[: len(x)])) < 5 / np.sqrt(n)


def test_many_keys_share_no_stream(draw):
    """2,000 draws of a small run: no two begin alike (chance collisions: 1 in 2,000 runs)."""
    firsts = {
        tuple(draw(NoiseKey(seed, 0, step, direction), i, (4,)).tolist())
        for seed in range(2)
        for step in range(100)
        for direction in range(2)
        for i in range(5)
    }
    assert len(firsts) == 2000


def test_moments_of_a_million_draws(draw):
    """Mean, variance and fourth moment of N(0, 1) within five standard errors; so across keys."""
    n = 1_000_000
    long = draw(KEY, shape=(n,)).double().numpy()
    short = torch.cat([draw(KEY._replace(step=s), shape=(10,)) for s in range(10_000)]).double()
    for z in (long, short.numpy()):
        root_n = np.sqrt(z.size)
        assert abs(z.mean()) < 5 * 1 / root_n
        assert abs((z**2).mean() - 1) < 5 * np.sqrt(2) / root_n  # Var z² = 2
        assert abs((z**3).mean()) < 5 * np.sqrt(15) / root_n  # Var z³ = 15
        assert abs((z**4).mean() - 3) < 5 * np.sqrt(96) / root_n  # Var z⁴ = 96
