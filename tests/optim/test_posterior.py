"""The Kalman filter is Bayesian linear regression, one observation at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.plain_methods import batch_posterior
from zo.optim.posterior import Posterior

light = settings(max_examples=60, deadline=None, derandomize=True)

STD = st.floats(0.05, 20.0)
SLOPE = st.floats(-50.0, 50.0)


@st.composite
def regressions(draw):
    """(prior_std, directions (m, k), observations (m,), noise_stds (m,)), no direction near zero."""
    k = draw(st.integers(1, 5))
    m = draw(st.integers(1, 8))
    entry = st.floats(-2.0, 2.0)
    rows = st.lists(entry, min_size=k, max_size=k).filter(lambda d: np.linalg.norm(d) > 0.1)
    d = np.array([draw(rows) for _ in range(m)])
    y = np.array([draw(SLOPE) for _ in range(m)])
    noise = np.array([draw(STD) for _ in range(m)])
    return draw(STD), d, y, noise


def observe_all(prior_std, d, y, noise) -> Posterior:
    posterior = Posterior(d.shape[1], prior_std)
    for row, value, std in zip(d, y, np.broadcast_to(noise, y.shape), strict=True):
        posterior.observe(row, float(value), float(std))
    return posterior


def assert_posterior(posterior, mean, cov, prior_std):
    """To 1e-7 of the prior's scale: the 1e-10 on the diagonal after each observation is the limit."""
    np.testing.assert_allclose(posterior.cov, cov, rtol=1e-6, atol=1e-8)
    scale = max(1.0, float(np.abs(mean).max()))
    np.testing.assert_allclose(posterior.mean, mean, rtol=0, atol=2e-5 * scale)


@light
@given(regressions())
def test_sequence_equals_batch_regression(regression):
    prior_std, d, y, noise = regression
    fixed = noise[0]
    mean, cov = batch_posterior(d, y, prior_std, fixed)
    assert_posterior(observe_all(prior_std, d, y, fixed), mean, cov, prior_std)


@light
@given(regressions())
def test_each_observation_keeps_its_own_noise(regression):
    prior_std, d, y, noise = regression
    mean, cov = batch_posterior(d, y, prior_std, noise)
    assert_posterior(observe_all(prior_std, d, y, noise), mean, cov, prior_std)


@light
@given(st.lists(SLOPE, min_size=1, max_size=6), STD, STD)
def test_axes_with_equal_noise_shrink_each_slope_by_gamma(y, prior_std, noise_std):
    """Corollary (reduced posterior): Σ = (σ_e² γ) I and μ = γ Y, γ = σ_p² / (σ_p² + σ_e²).

    The corollary prints Σ = γ I, which is this one in units where σ_e = 1.
    """
    k = len(y)
    posterior = observe_all(prior_std, np.eye(k), np.array(y), noise_std)
    gamma = prior_std**2 / (prior_std**2 + noise_std**2)
    np.testing.assert_allclose(posterior.mean, gamma * np.array(y), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(
        posterior.cov, gamma * noise_std**2 * np.eye(k), rtol=1e-6, atol=2e-9
    )
    assert posterior.shrinkage == pytest.approx(gamma, abs=1e-6)


@light
@given(regressions())
def test_covariance_stays_symmetric_positive_definite_and_shrinkage_within_unit(regression):
    prior_std, d, y, noise = regression
    posterior = Posterior(d.shape[1], prior_std)
    np.testing.assert_array_equal(posterior.cov, prior_std**2 * np.eye(d.shape[1]))
    assert posterior.shrinkage == 0.0
    for row, value, std in zip(d, y, noise, strict=True):
        before = posterior.shrinkage
        posterior.observe(row, float(value), float(std))
        assert posterior.mean.dtype == posterior.cov.dtype == np.float64
        np.testing.assert_array_equal(posterior.cov, posterior.cov.T)
        assert np.linalg.eigvalsh(posterior.cov).min() > 0
        assert 0 < posterior.shrinkage < 1
        assert posterior.shrinkage > before - 1e-6  # one more observation never says less


@pytest.mark.parametrize("noise_std", [1e-12, 0.0])
def test_covariance_survives_repeated_noiseless_observations(noise_std):
    """The same axis fifty times without noise: the jitter keeps Σ positive definite."""
    posterior = Posterior(3, 1.0)
    for _ in range(50):
        posterior.observe(np.array([1.0, 0.0, 0.0]), 2.0, noise_std)
    assert np.linalg.eigvalsh(posterior.cov).min() > 0
    assert posterior.mean[0] == pytest.approx(2.0)


@light
@given(regressions())
def test_widest_direction_maximises_the_variance(regression):
    posterior = observe_all(*regression)
    v = posterior.widest_direction()
    assert np.linalg.norm(v) == pytest.approx(1.0)
    assert v @ posterior.cov @ v == pytest.approx(np.linalg.eigvalsh(posterior.cov).max())
    assert posterior.widest_axis() == np.argmax(np.abs(np.linalg.eigh(posterior.cov)[1][:, -1]))


@light
@given(st.lists(st.integers(1, 20), min_size=2, max_size=5, unique=True))
def test_widest_axis_is_the_largest_diagonal_entry(noise_stds):
    """Axes seen with different noise leave Σ diagonal: the rule of the box and the code's agree."""
    k = len(noise_stds)
    posterior = observe_all(1.0, np.eye(k), np.ones(k), np.array(noise_stds, dtype=float))
    assert posterior.widest_axis() == np.argmax(np.diag(posterior.cov)) == np.argmax(noise_stds)
    axis = np.abs(posterior.widest_direction())
    np.testing.assert_array_equal(axis, np.eye(k)[posterior.widest_axis()])


@pytest.mark.parametrize("k", [2, 3, 5])
def test_axes_seen_once_each_with_equal_noise_are_no_tie(k):
    """The jitter on the first axis is the only one that no later observation of it shrinks."""
    seen = observe_all(0.7, np.eye(k), np.arange(1.0, k + 1), 0.3)
    assert seen.widest_axis() == 0


def test_widest_axis_of_a_tilted_belief_is_the_top_eigenvectors_not_the_diagonals():
    """An oblique Σ whose largest diagonal entry is not the top eigenvector's largest entry."""
    posterior = Posterior(3, 1.0)
    posterior.cov = np.array([[2.0, 0.0, 0.0], [0.0, 1.5, 1.4], [0.0, 1.4, 1.6]])
    assert np.argmax(np.diag(posterior.cov)) == 0
    assert posterior.widest_axis() == 2
