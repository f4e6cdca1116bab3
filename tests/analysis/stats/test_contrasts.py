"""Intervals, p-values and weights of studies, held against computations of others."""

import numpy as np
import pytest
from scipy import stats

from analysis.select.study_claims import slope_weights
from analysis.select.study_runs import mean_height
from analysis.stats.contrasts import Estimate, bootstrap, contrast, of_examples, of_values


def test_seeds_interval_and_p_value_are_those_of_the_paired_t_test():
    values = [1.5, 0.4, 2.9]
    found = of_values(values)
    reference = stats.ttest_1samp(values, 0)
    interval = reference.confidence_interval(0.95)
    assert found.p_value == pytest.approx(reference.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.estimate == pytest.approx(np.mean(values))
    assert (found.p_value < 0.05) == (found.verdict != "open")


def test_example_interval_is_that_of_a_mean_of_many():
    values = np.random.default_rng(3).choice([-100.0, 0, 100], 1000, p=[0.1, 0.7, 0.2])
    low, high = bootstrap(values)
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.25)
    assert bootstrap(values) == (low, high)


def test_the_interval_that_decides_is_wider_than_either():
    noise = np.random.default_rng(4)
    values = noise.choice([-100.0, 0, 100], (3, 500)) + np.array([[0.0], [3.0], [-3.0]])
    found = of_examples(values)
    seeds, examples = of_values(values.mean(axis=1)), bootstrap(values.mean(axis=0))
    assert (found.seeds_low, found.seeds_high) == (seeds.low, seeds.high)
    assert (found.examples_low, found.examples_high) == pytest.approx(examples)
    assert found.low < min(found.seeds_low, found.examples_low)
    assert found.high > max(found.seeds_high, found.examples_high)
    squares = (seeds.high - found.estimate) ** 2 + (examples[1] - found.estimate) ** 2
    assert found.high - found.estimate == pytest.approx(np.sqrt(squares))
    assert (found.n, found.examples) == (3, 500)


def test_true_zero_is_excluded_no_more_often_than_promised():
    noise = np.random.default_rng(5)
    excluded = 0
    for _ in range(200):
        bias = noise.normal(0, 2, (3, 1))
        excluded += of_examples(noise.normal(0, 10, (3, 300)) + bias).verdict != "open"
    assert excluded <= 16  # 5 % of 200 are 10


def test_one_seed_has_no_verdict():
    assert of_values([3.0]).verdict == "–"
    found = of_examples(np.ones((1, 50)))
    assert (found.estimate, found.verdict) == (1.0, "–")
    assert of_values([]).n == 0


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 1, "holds"), (-1, -0.1, "contradicted"), (-1, 1, "open"), (0, 1, "open")],
)
def test_verdicts(low, high, verdict):
    assert Estimate(0.5, low, high).verdict == verdict


def test_contrast_takes_the_seeds_that_all_have():
    values = contrast([(1, {0: 5.0, 1: 6.0, 2: 7.0}), (-1, {2: 3.0, 1: 1.0})])
    assert list(values) == [5.0, 4.0]


def test_slope_is_the_least_squares_one():
    ks, y = [1, 2, 4, 8], [60.0, 64.0, 63.0, 70.0]
    assert np.dot(slope_weights(ks), y) == pytest.approx(np.polyfit(np.log2(ks), y, 1)[0])


def test_mean_height_of_a_broken_line():
    x, y = [0, 10, 20], [4.0, 2.0, 2.0]
    assert mean_height(x, y, 0, 20) == pytest.approx(2.5)
    assert mean_height(x, y, 5, 15) == pytest.approx((2.5 * 5 + 2 * 5) / 10)
