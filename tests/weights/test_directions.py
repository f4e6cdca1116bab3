"""What the methods move along: the right shape, rank, moments and noise, float32 whatever θ is."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from zo.noise import PERTURBATION, SUBSPACE, NoiseKey, normal_
from zo.weights.directions import Gaussian, LowRank, Preconditioned

U = NoiseKey(seed=3, stream=PERTURBATION, step=7, direction=0)
V = NoiseKey(seed=3, stream=SUBSPACE, step=0, direction=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_low_rank_is_rows_by_the_rest_and_plain_noise_without_columns(dtype):
    low_rank = LowRank(U, V, rank=2)
    z = low_rank.sample(4, torch.zeros(6, 3, 3, dtype=dtype))
    u, v = normal_(torch.empty(2, 6), U, 4).T, normal_(torch.empty(2, 9), V, 4).T
    torch.testing.assert_close(z.view(6, 9), u @ v.T, rtol=1e-6, atol=1e-6)
    assert z.dtype == torch.float32
    for shape in ((7,), ()):
        p = torch.zeros(shape, dtype=dtype)
        assert torch.equal(replace(low_rank, scale=0.5).sample(1, p), Gaussian(U).sample(1, p))


def test_entries_of_low_rank_have_mean_0_and_variance_r():
    """Over 1,000 draws of 12 entries, within five standard errors; square ones do not draw U and V alike."""
    p, n, rank = torch.zeros(4, 4), 1000, 2
    keys = [(U._replace(step=s), V._replace(step=s)) for s in range(n)]
    draws = torch.stack([LowRank(*of, rank).sample(0, p).flatten() for of in keys]).double()
    means, squares = draws.mean(0).numpy(), (draws**2).mean(0).numpy()
    # Var z = r; z is a sum of r products, so E z⁴ = 9r + 3r(r − 1) and Var z² = 2r² + 6r
    assert (np.abs(means) < 5 * np.sqrt(rank / n)).all()
    assert (np.abs(squares - rank) < 5 * np.sqrt((2 * rank**2 + 6 * rank) / n)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_preconditioned_divides_by_the_root_and_leaves_h_alone(dtype):
    p = torch.zeros(5, 3)
    h = [torch.empty(0), torch.arange(1.0, 16.0).view(5, 3).div(7).to(dtype)]
    was = h[1].clone()
    z = Preconditioned(Gaussian(U), h).sample(1, p)
    assert torch.equal(z, Gaussian(U).sample(1, p) / was.float().sqrt())
    assert z.dtype == torch.float32
    assert torch.equal(h[1], was)
