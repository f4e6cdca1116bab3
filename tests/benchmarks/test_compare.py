"""The comparison's protocol: which run is next, and which is reported."""

import math

import pytest

from benchmarks.compare.protocol import (
    MOST_RATES,
    RATES,
    SEEDS,
    chosen_for,
    rate_of,
    seeds_of,
    wanted,
)

START = (-9, -8, -7)


def search(loss):
    """Makes the runs that are asked for, one at a time; returns exponent -> seed -> loss."""
    losses = {}
    while cells := wanted(START, losses):
        exponent, seed = cells[0]
        assert seed not in losses.get(exponent, {}), "asked for twice"
        losses.setdefault(exponent, {})[seed] = loss(exponent, seed)
        assert len(losses) <= MOST_RATES + 2, "no end"
    return losses


@pytest.mark.parametrize("best", [-11, -9, -8, -6, -5])
def test_the_grid_is_widened_until_the_best_rate_has_neighbours_which_every_seed_runs(best):
    losses = search(lambda e, seed: abs(e - best) + 0.01 * seed)
    tried = sorted(losses)
    assert len(tried) >= RATES
    assert tried == list(range(tried[0], tried[-1] + 1)), "a rate was left out"
    assert tried[0] < best < tried[-1]
    assert [e for e in tried if set(losses[e]) == set(SEEDS)] == [best - 1, best, best + 1]
    assert seeds_of(losses) == list(SEEDS)
    assert {chosen_for(seed, losses, SEEDS) for seed in SEEDS} == {best}


def test_a_seed_does_not_choose_its_own_rate():
    """At -8 seed 0 is so lucky that the mean over all seeds is best there; for the others -8 is the worst."""
    losses = search(lambda e, seed: 2.0 - 22.0 * (seed == 0) if e == -8 else abs(e + 8))
    assert min(losses, key=lambda e: losses[e][0]) == -8
    assert chosen_for(0, losses, SEEDS) != -8


def test_a_collapsed_run_is_never_chosen_and_the_search_turns_away_from_it():
    losses = search(lambda e, seed: math.inf if e >= -8 else abs(e + 10))
    assert max(e for e in losses if math.isfinite(losses[e][0])) == -9
    assert chosen_for(0, losses, SEEDS) == -10


def test_a_search_that_never_turns_ends():
    losses = search(lambda e, seed: float(e))
    assert len(losses) == MOST_RATES


def test_half_decades_are_written_as_people_write_them():
    assert [rate_of(e) for e in (-9, -8, -7)] == [3e-5, 1e-4, 3e-4]
