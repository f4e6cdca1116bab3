from itertools import product
from math import ceil

import numpy as np
import pytest
from scipy.stats import wilcoxon

from analysis.stats.intervals import bootstrap_interval, wilcoxon_exact


def test_bootstrap_enumerates_few_values() -> None:
    """All 256 resamples of four values, by hand."""
    values = [0.0, 3.0, 9.0, 4.0]
    means = sorted(sum(pick) / 4 for pick in product(values, repeat=4))
    expected = (means[ceil(256 * 0.025) - 1], means[ceil(256 * 0.975) - 1])
    assert bootstrap_interval(values) == pytest.approx(expected)
    assert np.isnan(bootstrap_interval([2.0] * 5)).all()
    with pytest.raises(ValueError, match="no interval for 1 values"):
        bootstrap_interval([1.0])


def test_wilcoxon_equals_scipy_and_all_signs() -> None:
    rng = np.random.default_rng(2)
    for n in (5, 12, 23):
        differences = [float(d) for d in rng.normal(0.4, 1, n)]
        expected = wilcoxon(differences, method="exact")
        assert wilcoxon_exact(differences) == pytest.approx(expected.pvalue)
    tied = [1.0, 1.0, -1.0, 2.0, 2.0, -3.0, 4.0, 0.0]  # ranks 2 2 2 4.5 4.5 6 7
    ranks = [2, 2, 2, 4.5, 4.5, 6, 7]
    sums = [
        sum(r for r, s in zip(ranks, signs, strict=True) if s)
        for signs in product((0, 1), repeat=7)
    ]
    smaller = 2 + 6
    expected_p = 2 * sum(s <= smaller for s in sums) / 2**7
    assert wilcoxon_exact(tied) == pytest.approx(expected_p)
    assert wilcoxon_exact([0.0, 0.0]) == 1.0
    inf = float("inf")  # collapses: the highest ranks, which they share
    assert wilcoxon_exact([1.0, -2.0, 3.0, inf, inf]) == wilcoxon_exact([1.0, -2.0, 3.0, 9, 9])
    assert wilcoxon_exact([1.0, 2.0, -inf]) == wilcoxon_exact([-1.0, -2.0, 3.0])
    with pytest.raises(ValueError, match="not a number"):
        wilcoxon_exact([1.0, float("nan")])
