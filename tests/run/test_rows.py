"""Rows of metrics.jsonl: what an interrupted run left behind, as far as it is whole, is all that it needs."""

import random

import pytest

from tests.support.damage import flip_bit, truncate
from tests.support.victims import what_it_came_to
from zo.run.directory import freeze
from zo.run.rows import read_rows, trajectory_of, usable_rows, write_rows
from zo.run.runner import run
from zo.run.tracking import read_status
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
@pytest.mark.parametrize(("first", "second"), [(5, 9), (9, 5)])
def test_more_or_fewer_steps_go_on_from_a_finished_run(make_run, tmp_path, capsys, first, second):
    more = ("optimizer=mezo", "eval_every=2")
    run(make_run(*more, f"steps={first}"))
    capsys.readouterr()
    longer = make_run(*more, f"steps={second}")
    run(longer)
    kept = min(first, second - (second % 2 if second < first else 0))
    assert f"goes on after step {kept} of " in capsys.readouterr().out
    fresh = make_run(*more, f"steps={second}", f"out={tmp_path / 'fresh'}")
    run(fresh)
    one, other = freeze(longer), freeze(fresh)
    ends = [what_it_came_to(one), what_it_came_to(other)]
    assert [end.pop("trajectory") for end in ends]  # its header has the number of steps
    assert ends[0] == ends[1]
    assert trajectory_of(one).bests == trajectory_of(other).bests
    assert len(list(one.parent.iterdir())) == 2


@pytest.mark.process
def test_another_patience_goes_on_where_this_one_ends(make_run, tmp_path):
    more = ("optimizer=mezo", "steps=12", "eval_every=1", "lr=1e-12")
    run(make_run(*more, "patience=6"))
    summary = run(make_run(*more, "patience=2"))
    assert (summary["run/stop_reason"], summary["run/steps"]) == ("patience", 3)
    longer = make_run(*more, "patience=null")
    assert run(longer)["run/steps"] == 12
    assert read_status(freeze(longer))["run/status"] == "finished"
