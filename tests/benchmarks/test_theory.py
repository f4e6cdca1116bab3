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
    ("kind", "below", "near", "above"),
    [
        ("equal", "not seen", "seen", "not seen"),
        ("at most", "seen", "open", "not seen"),
        ("at least", "not seen", "open", "seen"),
    ],
)
def test_verdicts_follow_the_interval(kind, below, near, above):
    found = [Row("", "", "", 1.0, measured, 0.1, kind).verdict for measured in (0.8, 1.05, 1.2)]
    assert found == [below, near, above]
