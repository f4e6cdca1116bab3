"""Rows of metrics.jsonl: what an interrupted run left behind, as far as it is whole, is all that it needs."""

import random

import pytest

from tests.support.victims import flip_bit, truncate
from zo.run.store.rows import evaluates, read_rows, usable_rows, write_rows
from zo.tasks.measures import LOSS

STEPS, EVAL_EVERY = 6, 2
ROWS = [
    {"step": step, "train/losses": [1 / step, 2 / step]}
    | ({} if step % EVAL_EVERY else {LOSS: 0.5})
    for step in range(1, STEPS + 1)
]


@pytest.fixture
def cfg(make_run):
    return make_run("optimizer=mezo", f"steps={STEPS}", f"eval_every={EVAL_EVERY}")


@pytest.mark.parametrize(
    ("growth", "expected"),
    [
        ("null", [0, 10, 20, 30, 40, 50, 60, 70, 77]),
        ("1.4142135623730951", [0, 10, 14, 20, 28, 40, 57, 77]),
        ("1.01", [0, *range(10, 78)]),
    ],
)
def test_evaluations_follow_multiples_or_a_factor_and_the_last_step(make_run, growth, expected):
    cfg = make_run("optimizer=mezo", "steps=77", "eval_every=10", f"eval_growth={growth}")
    assert [step for step in range(78) if evaluates(cfg, step)] == expected


@pytest.mark.parametrize("how", [flip_bit, truncate])
def test_after_any_damage_all_rows_before_it_are_used(tmp_path, cfg, how):
    write_rows(tmp_path, ROWS)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    for seed in range(30):
        how(path, random.Random(seed))
        damaged = path.read_bytes()
        pairs = enumerate(zip(whole, damaged, strict=False))
        first = next((i for i, (a, b) in pairs if a != b), min(len(whole), len(damaged)))
        found = usable_rows(read_rows(tmp_path), cfg, 2)
        assert found == ROWS[: whole[:first].count(b"\n")], seed
        path.write_bytes(whole)
    assert usable_rows(read_rows(tmp_path), cfg, 2) == ROWS


def test_a_row_that_lacks_its_evaluation_or_losses_is_made_again(cfg):
    assert usable_rows([*ROWS[:3], {**ROWS[3], "train/losses": [0.5]}], cfg, 2) == ROWS[:3]
    assert usable_rows(ROWS[1:], cfg, 2) == []
    cfg.eval_every = 3
    assert usable_rows(ROWS, cfg, 2) == ROWS[:2]
