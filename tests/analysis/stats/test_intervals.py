from itertools import product
from math import ceil, sqrt

import numpy as np
import pytest
from scipy.stats import friedmanchisquare, rankdata, wilcoxon

from analysis.stats.intervals import (
    bootstrap_interval,
    holm,
    mcnemar_exact,
    ranking,
    wilcoxon_exact,
    wilson_interval,
)


def test_wilson_textbook() -> None:
    """Newcombe, Statistics in Medicine 17, 1998, Table I: 81/263, 15/148, 0/20, 1/29."""
    for correct, n, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        assert wilson_interval(correct, n) == pytest.approx((low, high), abs=5e-5)


def test_mcnemar_by_hand() -> None:
    """Discordant 1 against 5: p = 2 (1 + 6) / 2^6; concordant examples change nothing."""
    first = [True] * 5 + [False] * 3 + [True] * 2  # right where second is wrong: 5 times
    second = [False] * 5 + [True] + [False] * 2 + [True] * 2  # right where first is wrong: once
    assert mcnemar_exact(first, second) == 2 * 7 / 64
    assert mcnemar_exact(second, first) == 2 * 7 / 64
    assert mcnemar_exact([*first, True], [*second, True]) == 2 * 7 / 64
    with pytest.raises(ValueError, match="unpaired"):
        mcnemar_exact([True], [True, False])


def test_bootstrap_enumerates_few_values() -> None:
    """All 27 resamples of three values, by hand."""
    values = [0.0, 3.0, 9.0]
    means = sorted(sum(pick) / 3 for pick in product(values, repeat=3))
    for confidence in (0.5, 0.8, 0.95):
        tail = (1 - confidence) / 2
        expected = (means[ceil(27 * tail) - 1], means[ceil(27 * (1 - tail)) - 1])
        assert bootstrap_interval(values, confidence) == pytest.approx(expected)
    assert np.isnan(bootstrap_interval([2.0] * 5)).all()
    with pytest.raises(ValueError, match="no interval for 1 values"):
        bootstrap_interval([1.0])


def test_wilcoxon_equals_scipy_and_all_signs() -> None:
    rng = np.random.default_rng(2)
    for n in (5, 12, 23):
        differences = [float(d) for d in rng.normal(0.4, 1, n)]
        expected = wilcoxon(differences, method="exact")
        positive, p_value = wilcoxon_exact(differences)
        assert min(positive, n * (n + 1) / 2 - positive) == pytest.approx(expected.statistic)
        assert p_value == pytest.approx(expected.pvalue)
    tied = [1.0, 1.0, -1.0, 2.0, 2.0, -3.0, 4.0, 0.0]  # ranks 2 2 2 4.5 4.5 6 7
    ranks = [2, 2, 2, 4.5, 4.5, 6, 7]
    sums = [
        sum(r for r, s in zip(ranks, signs, strict=True) if s)
        for signs in product((0, 1), repeat=7)
    ]
    smaller = 2 + 6
    expected_p = 2 * sum(s <= smaller for s in sums) / 2**7
    assert wilcoxon_exact(tied) == (20.0, pytest.approx(expected_p))
    assert wilcoxon_exact([0.0, 0.0]) == (0.0, 1.0)
    inf = float("inf")  # collapses: the highest ranks, which they share
    assert wilcoxon_exact([1.0, -2.0, 3.0, inf, inf]) == wilcoxon_exact([1.0, -2.0, 3.0, 9, 9])
    assert wilcoxon_exact([1.0, 2.0, -inf])[0] == 3.0
    with pytest.raises(ValueError, match="not a number"):
        wilcoxon_exact([1.0, float("nan")])


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.02, float("nan"), 0.04])[::2] == pytest.approx([0.04, 0.04])


def test_ranking_equals_scipy_and_demsar() -> None:
    scores = np.random.default_rng(3).integers(0, 9, (12, 4)) + np.array([0, 0, 2, 6])
    found = ranking(scores.tolist())
    assert found.p_value == pytest.approx(friedmanchisquare(*scores.T).pvalue)
    assert found.average == pytest.approx((5 - rankdata(scores, axis=1)).mean(axis=0))
    assert found.critical_difference == pytest.approx(2.569 * sqrt(4 * 5 / (6 * 12)), abs=1e-3)
    few = ranking(scores[:9].tolist())
    assert few.critical_difference is None
    alike = ranking([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]] * 6)
    assert alike.p_value == pytest.approx(1.0)
    assert alike.critical_difference is None
    collapsed = ranking([[1.0, 2.0, float("-inf")]] * 10)
    assert collapsed.average == [2.0, 1.0, 3.0]
    with pytest.raises(ValueError, match="without gaps"):
        ranking([[1.0, float("nan"), 2.0]] * 3)
