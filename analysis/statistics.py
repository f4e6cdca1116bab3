"""What the tables say about chance: an interval of one accuracy, a paired test of two classifiers."""

from math import comb, sqrt
from statistics import NormalDist


def wilson_interval(correct: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a binomial proportion, without continuity correction.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", 1927.

    Args:
        correct: number of successes, 0 to n.
        n: number of trials, at least 1.
        confidence: coverage, between 0 and 1.

    Returns:
        Lower and upper bound of the proportion, within [0, 1].

    Raises:
        ValueError: a count or the confidence is out of range.
    """
    if not (n >= 1 and 0 <= correct <= n and 0 < confidence < 1):
        raise ValueError(f"no interval for {correct} of {n} at confidence {confidence}")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p = correct / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = (
        0.0 if correct == 0 else centre - half
    )  # exactly the bound, not a rounding error beside it
    high = 1.0 if correct == n else centre + half
    return low, high


def accuracy(predictions: str, labels: str) -> float:
    """Fraction of predictions that equal their labels, one character per example.

    Raises:
        ValueError: no examples, or different numbers of them.
    """
    if not labels or len(predictions) != len(labels):
        raise ValueError(f"{len(predictions)} predictions for {len(labels)} labels")
    return sum(p == y for p, y in zip(predictions, labels, strict=True)) / len(labels)


def mcnemar_exact(first: str, second: str, labels: str) -> float:
    """Two-sided p-value of McNemar's exact test that two classifiers are equally often right.

    Only the discordant examples count, those that exactly one of the two gets right. Under the null
    hypothesis each falls to either side with probability 1/2, so the smaller count is
    binomial(discordant, 1/2); its tail is summed in integers and doubled, at most 1.

    Source: McNemar, Psychometrika 12, 1947; exact form as in Agresti, Categorical Data Analysis.

    Args:
        first: predictions of one classifier, one character per example.
        second: predictions of the other, of the same examples in the same order.
        labels: the right answers.

    Raises:
        ValueError: the three strings have different lengths.
    """
    if not len(first) == len(second) == len(labels):
        raise ValueError(f"unpaired: {len(first)}, {len(second)} and {len(labels)} examples")
    right = [(a == y, b == y) for a, b, y in zip(first, second, labels, strict=True)]
    first_only = sum(a and not b for a, b in right)
    second_only = sum(b and not a for a, b in right)
    discordant = first_only + second_only
    if discordant == 0:
        return 1.0
    tail = sum(comb(discordant, i) for i in range(min(first_only, second_only) + 1))
    return min(1.0, 2 * tail / 2**discordant)
