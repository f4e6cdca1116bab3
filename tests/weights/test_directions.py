"""What the methods move along: the right shape, rank, moments and noise, float32 whatever θ is."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from zo.noise import PERTURBATION, SUBSPACE, NoiseKey, normal_
from zo.weights.directions import Gaussian, LowRank, Preconditioned

U = NoiseKey(seed=3, stream=PERTURBATION, step=7, direction=0)
V = NoiseKey(seed=3, stream=SUBSPACE, step=0, direction=0)
RANK_2 = LowRank(U, V, rank=2)


def factors(
    direction: LowRank, i: int, rows: int, columns: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """U (rows, r) and V (columns, r), drawn by hand."""
    r = direction.rank
    return (
        normal_(torch.empty(r, rows), direction.u, i).T,
        normal_(torch.empty(r, columns), direction.v, i).T,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_low_rank_is_u_times_v(rank, dtype):
    direction = replace(RANK_2, rank=rank)
    p = torch.zeros(6, 9, dtype=dtype)
    z = direction.sample(4, p)
    u, v = factors(direction, 4, 6, 9)
    assert z.dtype == torch.float32
    torch.testing.assert_close(z, u @ v.T, rtol=1e-6, atol=1e-6)
    assert torch.linalg.matrix_rank(z, rtol=1e-5) == rank
    assert torch.equal(z, direction.sample(4, p))


def test_low_rank_keeps_v_while_u_is_new():
    """The rows of all steps of an interval lie in the r-dimensional span of V's columns."""
    p = torch.zeros(6, 9)
    steps = [replace(RANK_2, u=U._replace(step=s)).sample(0, p) for s in range(5)]
    assert torch.linalg.matrix_rank(torch.cat(steps), rtol=1e-5) == 2
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(steps))
    other = replace(RANK_2, v=V._replace(step=1)).sample(0, p)
    assert torch.linalg.matrix_rank(torch.cat([steps[0], other]), rtol=1e-5) == 4


def test_low_rank_of_a_square_matrix_does_not_draw_u_and_v_alike():
    """Both are r × 6 normals of tensor 0 and step 0; only the stream tells them apart."""
    direction = LowRank(U._replace(step=0), V, rank=2)
    u, v = factors(direction, 0, 6, 6)
    assert not torch.equal(u, v)
    z = direction.sample(0, torch.zeros(6, 6))
    assert not torch.equal(z, z.T)


@pytest.mark.parametrize("shape", [(7,), ()], ids=str)
def test_low_rank_is_plain_noise_without_columns(shape):
    p = torch.zeros(shape)
    for scale in (1.0, 0.5):
        z = replace(RANK_2, scale=scale).sample(1, p)
        assert torch.equal(z, Gaussian(U).sample(1, p))


def test_low_rank_of_more_dimensions_is_rows_by_the_rest():
    z = RANK_2.sample(0, torch.zeros(4, 3, 5))
    assert torch.equal(z.view(4, 15), RANK_2.sample(0, torch.zeros(4, 15)))


def test_scale_multiplies_the_matrix():
    p = torch.zeros(6, 9)
    scaled = replace(RANK_2, scale=0.5).sample(0, p)
    assert torch.equal(scaled, 0.5 * RANK_2.sample(0, p))


@pytest.mark.parametrize("rank", [2])
def test_entries_of_low_rank_have_mean_0_and_variance_r(rank):
    """Over 4,000 draws of 12 entries, within five standard errors."""
    p = torch.zeros(3, 4)
    draws = torch.stack(
        [
            LowRank(U._replace(step=s), V._replace(step=s), rank).sample(0, p).flatten()
            for s in range(4000)
        ]
    ).double()
    means, squares = draws.mean(0).numpy(), (draws**2).mean(0).numpy()
    # Var z = r; z is a sum of r products, so E z⁴ = 9r + 3r(r − 1) and Var z² = 2r² + 6r
    assert (np.abs(means) < 5 * np.sqrt(rank / 4000)).all()
    assert (np.abs(squares - rank) < 5 * np.sqrt((2 * rank**2 + 6 * rank) / 4000)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_preconditioned_divides_by_the_root_and_leaves_h_alone(dtype):
    p = torch.zeros(5, 3)
    h = [torch.empty(0), torch.arange(1.0, 16.0).view(5, 3).div(7).to(dtype)]
    was = h[1].clone()
    z = Preconditioned(Gaussian(U), h)
    assert torch.equal(z.sample(1, p), Gaussian(U).sample(1, p) / was.float().sqrt())
    assert z.sample(1, p).dtype == torch.float32
    assert torch.equal(h[1], was)
