"""Intervals, p-values and weights of studies, held against computations of others."""

import numpy as np
import pandas as pd
import pytest

from analysis.stats.contrasts import of_examples, of_values, verdicts
from analysis.stats.intervals import NAN, bootstrap

NO_CHOICE = (NAN, NAN)


def test_example_interval_is_that_of_a_mean_of_many():
    values = np.random.default_rng(3).choice([-100.0, 0, 100], 1000, p=[0.1, 0.7, 0.2])
    low, high = bootstrap(values)
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.25)
    assert bootstrap(values) == (low, high)


def test_the_interval_that_decides_is_wider_than_either():
    noise = np.random.default_rng(4)
    values = noise.choice([-100.0, 0, 100], (3, 500)) + np.array([[0.0], [3.0], [-3.0]])
    found = of_examples(values, NO_CHOICE)
    seeds, examples = of_values(values.mean(axis=1)), bootstrap(values.mean(axis=0))
    assert (found.seeds_low, found.seeds_high) == (seeds.low, seeds.high)
    assert (found.examples_low, found.examples_high) == pytest.approx(examples)
    assert found.low < min(found.seeds_low, found.examples_low)
    squares = (seeds.high - found.estimate) ** 2 + (examples[1] - found.estimate) ** 2
    assert found.high - found.estimate == pytest.approx(np.sqrt(squares))
    assert (found.n, found.examples) == (3, 500)


def test_one_seed_has_no_interval_and_no_verdict():
    found = of_values([3.0])
    assert (found.n, found.estimate, of_values([]).n) == (1, 3.0, 0)
    assert np.isnan([found.low, found.high, found.p_value]).all()
    assert list(judged(vars(found))["verdict"]) == ["–"]


def judged(*rows: dict) -> pd.DataFrame:
    frame = pd.DataFrame([{"claim": "i", **row} for row in rows])
    return verdicts(frame, pd.Series([True] * len(rows)))


def claim(p: float, low: float = 0.1, high: float = 1.0) -> dict:
    return {"estimate": (low + high) / 2, "low": low, "high": high, "p_value": p}


def test_a_verdict_needs_the_corrected_p_value_and_the_interval():
    """Holm over three: 0.01 becomes 0.03, 0.03 becomes 0.06, the last keeps the larger 0.06."""
    frame = judged(claim(0.01), claim(0.03), claim(0.04, low=-1, high=-0.1))
    assert list(frame["p_holm"]) == pytest.approx([0.03, 0.06, 0.06])
    assert list(frame["verdict"]) == ["holds", "open", "open"]
    alone = judged(claim(0.01, low=-1, high=-0.1), claim(0.01) | {"claim": "ii"})
    assert list(alone["verdict"]) == ["contradicted", "holds"]
    assert list(judged(claim(0.01, low=-0.1))["verdict"]) == ["open"]
