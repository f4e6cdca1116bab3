"""The comparison's protocol: which run is next, and which is reported."""

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.compare.protocol import PARTS, Cell, Part, chosen_for, seeds_of, start_of, wanted
from benchmarks.compare.results import detectable
from benchmarks.compare.runs import config_of, from_csv, to_csv
from zo import config
from zo.config.identity import run_id

WHOLE, SMALL = Part(()), Part((), seeds=(0, 1), rates=3, most_rates=5)
START = range(-9, -6)


def search(loss, part=WHOLE):
    """Makes the runs that are asked for, one at a time; returns exponent -> seed -> loss."""
    losses = {}
    while cells := wanted(part, START, losses):
        exponent, seed = cells[0]
        assert seed not in losses.get(exponent, {}), "asked for twice"
        losses.setdefault(exponent, {})[seed] = loss(exponent, seed)
    return losses


@pytest.mark.parametrize("part", [WHOLE, SMALL], ids=["whole", "small"])
@pytest.mark.parametrize("best", [-10, -9, -8, -6])
def test_the_grid_is_widened_until_the_best_rate_has_neighbours_which_every_seed_runs(best, part):
    losses = search(lambda e, seed: abs(e - best) + 0.01 * seed, part)
    tried = sorted(losses)
    assert len(tried) >= part.rates
    assert tried == list(range(tried[0], tried[-1] + 1)), "a rate was left out"
    whole = [e for e in tried if set(losses[e]) == set(part.seeds)]
    assert whole == [best - 1, best, best + 1]
    assert seeds_of(part, losses) == list(part.seeds)
    assert {chosen_for(seed, losses, part.seeds) for seed in part.seeds} == {best}


def test_a_best_rate_at_an_edge_is_not_reported():
    assert seeds_of(SMALL, {e: {0: float(-e)} for e in START}) == []
    assert seeds_of(SMALL, {e: {0: abs(e + 8.0)} for e in START}) == [0]


def test_a_seed_does_not_choose_its_own_rate():
    """At -8 seed 0 is so lucky that the mean over all seeds is best there; for the others -8 is the worst."""
    losses = search(lambda e, seed: 2.0 - 22.0 * (seed == 0) if e == -8 else abs(e + 8))
    assert min(losses, key=lambda e: losses[e][0]) == -8
    assert chosen_for(0, losses, WHOLE.seeds) != -8


def test_a_collapsed_run_is_never_chosen_and_the_search_turns_away_from_it():
    losses = search(lambda e, seed: math.inf if e >= -8 else abs(e + 10))
    assert max(e for e in losses if math.isfinite(losses[e][0])) == -9
    assert chosen_for(0, losses, WHOLE.seeds) == -10


def test_a_search_that_never_turns_ends():
    assert len(search(lambda e, seed: float(e))) == WHOLE.most_rates


def test_half_decades_are_written_as_people_write_them():
    assert [Cell("", "", e, 0).lr for e in start_of(1e-4)] == [3e-5, 1e-4, 3e-4]
    assert list(start_of(3e-4)) == [-8, -7, -6]


@pytest.mark.parametrize("alpha", [0.05, 0.05 / 17])
def test_the_difference_that_could_be_found_is_found_in_four_of_five_studies(alpha):
    """With statsmodels' solve_power it is found in six of ten at the smaller level."""
    noise = np.random.default_rng(0).standard_normal((4000, 5))
    gaps = noise + detectable([-1.0, 0.0, 0.0, 0.0, 1.0], alpha) / math.sqrt(0.5)
    found = stats.ttest_1samp(gaps, 0.0, axis=1).pvalue < alpha
    assert found.mean() == pytest.approx(0.8, abs=0.02)


def test_runs_go_on_from_a_csv_but_for_those_that_are_made_otherwise_today(tmp_path):
    config.register()
    cells = [Cell(part, PARTS[part].names[-1], -7, 0) for part in PARTS]
    cells += [Cell("fp32", "bszo", -7, 0), Cell("gone", "mezo", -7, 0)]
    ids = [run_id(config_of(cell, "out/x")) for cell in cells[:-2]]
    ids += ["bszo-of-another-protocol", "mezo-of-a-part-gone"]
    runs = [
        {**cell._asdict(), "run": of, "lr": cell.lr, "loss": math.inf, "losses": "90:0.7500"}
        for cell, of in zip(cells, ids, strict=True)
    ]
    to_csv(runs, tmp_path / "runs.csv")
    assert from_csv(tmp_path / "runs.csv", "out/x") == dict(zip(cells[:-2], runs, strict=False))
