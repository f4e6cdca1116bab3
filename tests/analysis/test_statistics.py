import numpy as np
import pytest
from scipy.stats import binomtest

from analysis.statistics import accuracy, mcnemar_exact, wilson_interval


def test_wilson_textbook() -> None:
    """Newcombe, Statistics in Medicine 17, 1998, Table I: 81/263, 15/148, 0/20, 1/29."""
    for correct, n, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        assert wilson_interval(correct, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("n", [1, 7, 1066])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_wilson_equals_scipy(n: int, confidence: float) -> None:
    for correct in {0, 1, n // 3, n - 1, n}:
        expected = binomtest(correct, n).proportion_ci(confidence, method="wilson")
        interval = wilson_interval(correct, n, confidence)
        assert interval == pytest.approx((expected.low, expected.high), abs=1e-12)
        assert 0 <= interval[0] <= correct / n <= interval[1] <= 1


@pytest.mark.parametrize(("correct", "n", "confidence"), [(1, 0, 0.9), (3, 2, 0.9), (1, 2, 1.0)])
def test_wilson_refuses(correct: int, n: int, confidence: float) -> None:
    with pytest.raises(ValueError, match="no interval"):
        wilson_interval(correct, n, confidence)


def test_mcnemar_by_hand() -> None:
    """Discordant 1 against 5: p = 2 (1 + 6) / 2^6; concordant examples change nothing."""
    labels = "1" * 10
    first = "1111100011"  # right where second is wrong: 5 times
    second = "0000010011"  # right where first is wrong: once
    assert mcnemar_exact(first, second, labels) == 2 * 7 / 64
    assert mcnemar_exact(second, first, labels) == 2 * 7 / 64
    assert mcnemar_exact(first + "10", second + "10", labels + "11") == 2 * 7 / 64


def test_mcnemar_without_difference() -> None:
    assert mcnemar_exact("0101", "0101", "0000") == 1.0
    assert mcnemar_exact("10", "01", "11") == 1.0  # one to one: the doubled tail stops at 1


def test_mcnemar_equals_scipy() -> None:
    rng = np.random.default_rng(0)
    for n in (20, 500, 5000):
        labels, first, second = ("".join(map(str, rng.integers(0, 3, n))) for _ in range(3))
        first = labels[: n // 10] + first[n // 10 :]
        only_first = sum(a == y != b for a, b, y in zip(first, second, labels, strict=True))
        only_second = sum(b == y != a for a, b, y in zip(first, second, labels, strict=True))
        expected = binomtest(only_first, only_first + only_second, 0.5).pvalue
        assert mcnemar_exact(first, second, labels) == pytest.approx(expected, rel=1e-9)


def test_unpaired_predictions_are_refused() -> None:
    with pytest.raises(ValueError, match="unpaired"):
        mcnemar_exact("01", "011", "011")
    with pytest.raises(ValueError, match="2 predictions for 3 labels"):
        accuracy("01", "011")
    assert accuracy("0110", "0111") == 0.75
