"""The Kalman filter is Bayesian linear regression, one observation at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zo.optim.posterior import Posterior

STD = st.floats(0.05, 20.0)


@st.composite
def regressions(draw):
    """(prior_std, directions (m, k), observations (m,), noise_stds (m,)), no direction near zero."""
    k, m, entry = draw(st.integers(1, 5)), draw(st.integers(1, 8)), st.floats(-2.0, 2.0)
    rows = st.lists(entry, min_size=k, max_size=k).filter(lambda d: np.linalg.norm(d) > 0.1)
    d = np.array([draw(rows) for _ in range(m)])
    y = np.array([draw(st.floats(-50.0, 50.0)) for _ in range(m)])
    return draw(STD), d, y, np.array([draw(STD) for _ in range(m)])


def observe_all(prior_std, d, y, noise) -> Posterior:
    posterior = Posterior(d.shape[1], prior_std)
    for row, value, std in zip(d, y, noise, strict=True):
        posterior.observe(row, float(value), float(std))
    return posterior


@given(regressions())
def test_a_sequence_is_the_regression_in_closed_form(regression):
    """To the 1e-10 on Σ's diagonal after each observation; Σ stays symmetric and positive definite."""
    prior_std, d, y, noise = regression
    variance = noise**2 * (d**2).sum(axis=1)
    cov = np.linalg.inv(np.eye(d.shape[1]) / prior_std**2 + d.T @ (d / variance[:, None]))
    mean = cov @ d.T @ (y / variance)
    posterior = observe_all(*regression)
    np.testing.assert_allclose(posterior.cov, cov, rtol=1e-6, atol=1e-8)
    scale = max(1.0, float(np.abs(mean).max()))
    np.testing.assert_allclose(posterior.mean, mean, rtol=0, atol=2e-5 * scale)
    np.testing.assert_array_equal(posterior.cov, posterior.cov.T)
    assert np.linalg.eigvalsh(posterior.cov).min() > 0
    expected = 1 - np.trace(posterior.cov) / (d.shape[1] * prior_std**2)
    assert posterior.shrinkage == pytest.approx(expected)


@pytest.mark.parametrize("noise_std", [1e-12, 0.0])
def test_covariance_survives_repeated_noiseless_observations(noise_std):
    """The same axis fifty times without noise: the jitter keeps Σ positive definite."""
    posterior = observe_all(1.0, np.eye(3)[[0] * 50], np.full(50, 2.0), np.full(50, noise_std))
    assert np.linalg.eigvalsh(posterior.cov).min() > 0
    assert posterior.mean[0] == pytest.approx(2.0)


def test_widest_axis_is_the_top_eigenvectors_not_the_diagonals():
    """An oblique Σ whose largest diagonal entry is not the top eigenvector's largest entry."""
    posterior = Posterior(3, 1.0)
    posterior.cov = np.array([[2.0, 0.0, 0.0], [0.0, 1.5, 1.4], [0.0, 1.4, 1.6]])
    assert posterior.widest_axis() == 2
    v = posterior.widest_direction()
    assert v @ posterior.cov @ v == pytest.approx(np.linalg.eigvalsh(posterior.cov).max())
