"""The comparison's protocol: which run is next, and which is reported."""

import math

import pandas as pd
import pytest

from benchmarks.compare.__main__ import ROOT
from benchmarks.compare.protocol import Part, chosen_for, seeds_of, wanted
from benchmarks.compare.runs import from_csv
from zo import config

WHOLE, SMALL = Part(()), Part((), seeds=(0, 1), rates=3, most_rates=5)
COMMITTED = ROOT / "results/measured/comparison/comparison_smollm2.csv"
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


def test_runs_go_on_from_the_committed_csv_but_for_those_that_are_made_otherwise_today(tmp_path):
    config.register()
    committed = pd.read_csv(COMMITTED)
    others = [committed.assign(part="gone"), committed.assign(seed=9, run="of another protocol")]
    pd.concat([committed, *others]).to_csv(tmp_path / "runs.csv", index=False)
    found = from_csv(tmp_path / "runs.csv", "out")
    assert [run["run"] for run in found.values()] == committed["run"].tolist()
