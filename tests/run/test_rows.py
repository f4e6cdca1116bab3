"""Rows of metrics.jsonl: what an interrupted run left behind, as far as it is whole, is all that it needs."""

import random

import pytest

from tests.support.victims import flip_bit, truncate, what_it_came_to
from zo.run.results.export import reach
from zo.run.runner import run
from zo.run.store.directory import directory_of
from zo.run.store.rows import evaluates, read_rows, trajectory_of, usable_rows, write_rows
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


@pytest.mark.process
@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("steps=5", "steps=9", 5),
        ("steps=9", "steps=5", 4),
        ("lr=1e-12 patience=1", "lr=1e-12 patience=null", 4),  # nothing gets better
        ("lr=1e-12 patience=null", "lr=1e-12 patience=1", 4),
    ],
)
def test_another_number_of_steps_or_patience_goes_on_from_a_finished_run(
    make_run, tmp_path, capsys, first, second, kept
):
    more = ("optimizer=mezo", "eval_every=2", "steps=7")
    run(make_run(*more, *first.split()))
    capsys.readouterr()
    other = make_run(*more, *second.split())
    run(other)
    assert f"goes on after step {kept} of " in capsys.readouterr().out
    fresh = make_run(*more, *second.split(), f"out={tmp_path / 'fresh'}")
    run(fresh)
    directories = directory_of(other), directory_of(fresh)
    ends = [what_it_came_to(directory) for directory in directories]
    assert [end.pop("trajectory.bin") for end in ends]  # its header has the number of steps
    assert ends[0] == ends[1]
    bests = [trajectory_of(directory).bests for directory in directories]
    assert bests[0] == bests[1]
    assert len(list(directories[0].parent.iterdir())) == 2


@pytest.mark.process
def test_a_longer_run_by_backpropagation_takes_over_what_the_shorter_one_has(make_run):
    """It goes on from the checkpoint of the best step, behind which nothing gets better."""
    given = ("optimizer=adam", "lr=1e-12", "eval_every=2", "checkpoint.keep_best=true")
    runs = [make_run(*given, f"steps={steps}") for steps in (4, 6)]
    for cfg in runs:
        run(cfg)
    short, longer = map(directory_of, runs)
    assert read_rows(longer)[:2] == read_rows(short)[:2]
    assert [row["step"] for row in read_rows(longer)] == [1, 2, 3, 4, 5, 6]
    assert (longer / "predictions.csv").read_bytes() == (short / "predictions.csv").read_bytes()
    best = (reach(directory, "best").assembly.weights_hash() for directory in (short, longer))
    assert {*best} == {read_rows(short)[1]["best/weights"]}
