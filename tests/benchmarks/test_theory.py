"""The simulated BSZO against the suite's filter, and the rule of verdicts."""

import numpy as np
import pytest

from benchmarks.theory.simulate import Method, Quadratic, filtered, sampled
from benchmarks.theory.statements import Row
from zo.optim.posterior import Posterior


@pytest.mark.parametrize(("k", "m", "ema"), [(1, 1, 0.0), (2, 3, 0.1), (3, 5, 0.3)])
def test_the_simulated_filter_is_that_of_the_method(k, m, ema):
    slopes = np.random.default_rng(0).standard_normal((4, k)) * 3
    method = Method(k=k, m=m, prior_std=0.7, noise_std=1.3, noise_ema=ema)
    mean, variances, noise_var = filtered(method, slopes, np.full(4, 1.3**2))
    for row, ys in enumerate(slopes):
        belief, var = Posterior(k, 0.7), 1.3**2
        for tau in range(m):
            axis = tau if tau < k else int(np.diag(belief.cov).argmax())
            d = np.eye(k)[axis]
            var = (1 - ema) * var + ema * belief.residual(d, ys[axis]) ** 2
            belief.observe(d, ys[axis], var**0.5)
        np.testing.assert_allclose(mean[row], belief.mean, rtol=1e-7)
        np.testing.assert_allclose(variances[row], np.diag(belief.cov), rtol=1e-7)
        assert noise_var[row] == pytest.approx(var, rel=1e-7)


def test_a_difference_on_a_line_is_its_slope_and_half_its_curvature():
    line = Quadratic(np.array([2.0]))
    found = sampled(line, Method(1, 1, eps=0.5), np.array([3.0]), 1000, seed=0)
    z = found.update[:, 0] / found.mean[:, 0]
    np.testing.assert_allclose(found.slopes[:, 0], 6 * z + 0.5 * 0.5 * 2 * z**2)


@pytest.mark.parametrize(
    ("kind", "measured", "verdict"),
    [
        ("equal", 1.05, "seen"),
        ("equal", 1.2, "not seen"),
        ("at most", 0.8, "seen"),
        ("at most", 1.05, "open"),
        ("at most", 1.2, "not seen"),
        ("at least", 1.2, "seen"),
        ("at least", 0.8, "not seen"),
    ],
)
def test_verdicts_follow_the_interval(kind, measured, verdict):
    assert Row("", "", "", 1.0, measured, 0.1, kind).verdict == verdict
