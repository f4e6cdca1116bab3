"""Passes to a loss: known answers, censoring, ties, and how often a planted ratio is found."""

import numpy as np
import pandas as pd
import pytest

from analysis.stats.inference import LEVEL, POWER, minimum_detectable_effect
from analysis.stats.passes import Arrival, area, passes_to, ratios

FORWARDS = [100, 141, 200, 283, 400]


def curve(*losses: float) -> pd.DataFrame:
    return pd.DataFrame({"forwards": FORWARDS[: len(losses)], "loss": losses})


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ((0.7, 0.6, 0.5, 0.5, 0.5), (200, True, 141, False)),  # equal to the level counts
        ((0.7, 0.4, 0.6, 0.5, 0.4), (283, True, 200, False)),  # one evaluation alone does not
        ((0.4, 0.4, 0.9, 0.9, 0.9), (100, True, 0, False)),  # below at once; the rest does not matter
        ((0.7, 0.6, 0.6, 0.6, 0.4), (400, False, 283, True)),  # nothing confirms the last evaluation
        ((0.7, 0.6, 0.6, 0.6, 0.6), (400, False, 400, False)),
        ((0.7, float("nan"), 0.4, float("nan"), 0.4), (400, False, 283, True)),
        ((0.4,), (400, False, 0, True)),
    ],
)  # fmt: skip
def test_a_level_is_reached_at_the_first_of_two_evaluations(losses, expected):
    shuffled = curve(*losses).sample(frac=1, random_state=0)
    assert passes_to(shuffled, 0.5, 400) == expected


def test_the_area_is_a_mean_over_the_logarithm_of_passes():
    assert area(curve(0.5, 0.5, 0.5)) == pytest.approx(0.5)
    line = pd.DataFrame({"forwards": [1.0, 10, 100], "loss": [3.0, 2, 1]})
    assert area(line) == pytest.approx(2)
    late, early = curve(0.7, 0.7, 0.7, 0.5, 0.5), curve(0.7, 0.5, 0.5, 0.5, 0.5)
    assert area(early) < area(late)


def runs(**passes: list[float]) -> pd.DataFrame:
    rows = [
        {"line": line, "seed": seed, **Arrival(value, value < 400, value / 2, False)._asdict()}
        for line, values in passes.items()
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows).sample(frac=1, random_state=1)


def test_ratios_are_paired_by_seed_and_censored_at_the_budget():
    found = ratios(runs(mezo=[100, 200, 400], bszo=[200, 400, 400], same=[100, 200, 400]), "mezo")
    assert found.loc["bszo", "ratio"] == pytest.approx(2 ** (2 / 3))
    assert found.loc["bszo", ["passes", "reached", "seeds"]].tolist() == [1000 / 3, 1, 3]
    assert found.loc["same", "ratio"] == 1
    assert found.loc[["same", "mezo"], ["low", "p_value"]].isna().all(axis=None)
    assert np.isnan(found.loc["mezo", "ratio"])
    assert found.loc["same", ["least", "most"]].tolist() == [0, np.inf]  # one pair has no arrival
    assert found.loc[["bszo", "mezo"], ["least", "most"]].isna().all(axis=None)


def test_equal_ratios_have_the_interval_that_the_evaluations_leave_open():
    """BSZO and MeZO-Adam over SmolLM2's 40,000 passes at 0.65 nats, evaluated at powers of √2."""
    pairs = {"mezo": (4992, 3530), "bszo": (882, 624), "mezo_adam": (1248, 882), "adam": (624, 0)}
    rows = [
        {"line": line, "seed": seed, **Arrival(passes, True, after, False)._asdict()}
        for line, (passes, after) in pairs.items()
        for seed in (1, 2, 3)
    ]
    found = ratios(pd.DataFrame(rows), "mezo").round(2)
    assert found.loc["bszo", ["least", "most"]].tolist() == [0.13, 0.25]
    assert found.loc["mezo_adam", ["least", "most"]].tolist() == [0.18, 0.35]
    assert found.loc["adam", ["least", "most"]].tolist() == [0, 0.18]
    assert found["at_once"].to_dict() == {"mezo": 0, "bszo": 0, "mezo_adam": 0, "adam": 3}


@pytest.mark.parametrize(("ratio", "expected"), [(1.3, POWER), (1.0, LEVEL)])
def test_a_planted_ratio_is_found_at_the_power_and_none_at_the_level(ratio, expected):
    """1,000 made-up lines of ten seeds with independent log ratios, of the spread by which 1.3 has a power of 80 %."""
    spread = np.log(1.3) / minimum_detectable_effect(10, 1)
    noise = np.random.default_rng(5)
    base = np.exp(noise.normal(8, 1, 10))
    others = base * np.exp(noise.normal(np.log(ratio), spread, (1000, 10)))
    table = pd.DataFrame(np.vstack([base, others])).stack().rename_axis(["line", "seed"])
    found = ratios(
        table.rename("passes").reset_index().assign(reached=True, after=1.0, at_end=False), 0
    ).drop(0)
    assert np.mean(found["p_value"] < LEVEL) == pytest.approx(expected, abs=0.03)
