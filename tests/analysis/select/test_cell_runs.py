"""Selection on frames made by hand; the rules are those of the paper's protocol."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.select.cells import choose, command, fill, over_seeds, shortfall
from tests.analysis.make_frames import expected

LRS, SEEDS = (1e-6, 1e-5, 1e-4), (0, 1, 2)
GRID: Any = {"lr": LRS[::-1], "seed": SEEDS, "run_id": "mezo-{lr:g}-{seed}"}


def run(lr: float, seed: int, val: float, test: float = 0.5, **changes: Any) -> dict[str, Any]:
    return {
        "run_id": f"mezo-{lr:g}-{seed}",
        "status": "finished",
        "group": "another",
        "duplicates": 0,
        "best/step": 50,
        "best/val_accuracy": val,
        "best/test_accuracy": test,
        "best/val_n": 500,
        "best/test_n": 277,
        "time/step_ms_median": 10.0 + seed,
        **changes,
    }


def collapsed(lr: float, seed: int) -> dict[str, Any]:
    return {"run_id": f"mezo-{lr:g}-{seed}", "status": "collapsed", "run/collapse_step": 7}


def filled(*runs: dict[str, Any], **grid: Any) -> pd.DataFrame:
    return fill(expected(**GRID | grid), pd.DataFrame(runs))


def setting(*runs: dict[str, Any]) -> dict[Any, Any]:
    """The one row that these runs make."""
    (row,) = over_seeds(filled(*runs)).to_dict("records")
    return row


def test_a_run_fills_its_cell_whatever_its_group():
    killed = {"run_id": "mezo-1e-06-1", "status": "unfinished"}
    twice = run(1e-6, 2, 0.7, duplicates=2)
    rows = filled(run(1e-5, 1, 0.7, 0.65), killed, twice, collapsed(1e-5, 0)).set_index("run_id")
    cell = rows.loc["mezo-1e-05-1"]
    assert (cell["val_accuracy"], cell["test_accuracy"], cell["best_step"]) == (0.7, 0.65, 50)
    assert (cell["val_n"], cell["test_n"], cell["step_ms"]) == (500, 277, 11.0)
    said = {"mezo-1e-05-1": "finished", "mezo-1e-06-1": "unfinished"}
    said |= {"mezo-1e-06-2": "duplicated", "mezo-1e-05-0": "collapsed"}
    assert rows["status"].to_dict() == dict.fromkeys(rows.index, "missing") | said
    assert rows.loc["mezo-1e-06-0", "device"] is None
    assert np.isnan(rows.loc["mezo-1e-06-0", "test_accuracy"])


def test_lr_is_chosen_once_by_the_mean_over_seeds():
    """Seed 0 alone would take 1e-4, whose mean is lower; test accuracy would take 1e-6."""
    runs = [run(1e-6, s, 0.60, 0.99) for s in SEEDS]
    runs += [run(1e-5, s, v, t) for s, v, t in ((0, 0.7, 0.6), (1, 0.8, 0.7), (2, 0.75, 0.5))]
    runs += [run(1e-4, s, v, 0.9) for s, v in ((0, 0.9), (1, 0.6), (2, 0.6))]
    line = setting(*runs)
    assert (line["lr"], line["at_edge"], line["grid"]) == (1e-5, False, 9)
    assert line["test_mean"] == pytest.approx(0.6)
    assert line["test_std"] == pytest.approx(0.1)  # n - 1, by hand: sqrt((0 + 0.01 + 0.01) / 2)
    assert (line["n"], line["seeds"], line["status"]) == (3, 3, "finished")
    assert line["step_ms"] == 11.0
    assert line["run_ids"] == "mezo-1e-05-0 mezo-1e-05-1 mezo-1e-05-2"


@pytest.mark.parametrize(("column", "values"), [("macro_f1", (0.4, 0.6)), ("loss", (0.7, 0.5))])
def test_what_chose_the_best_steps_chooses_the_rate(column, values):
    """1e-5 has the lower accuracy, and the better of what `task.select_by` names, which 1e-4 did not log."""
    runs = [
        {**run(lr, s, accuracy), f"best/val_{column}": value}
        for lr, accuracy, value in zip((1e-6, 1e-5), (0.7, 0.6), values, strict=True)
        for s in SEEDS
    ]
    assert setting(*runs, *(run(1e-4, s, 0.9) for s in SEEDS))["lr"] == 1e-5


def test_rates_are_compared_over_the_seeds_that_both_have():
    """One finished seed of three at 0.74 does not beat three at 0.72; two rates with two seeds share seed 1."""
    killed = {"run_id": "mezo-0.0001-1", "status": "unfinished"}
    runs = [*(run(1e-5, s, 0.72) for s in SEEDS), run(1e-4, 0, 0.74), killed]
    line = setting(*runs)
    assert (line["lr"], line["at_edge"]) == (1e-5, True)  # the only rate that all seeds have ended
    runs = [run(1e-6, 0, 0.9), run(1e-6, 1, 0.5), run(1e-5, 1, 0.6), run(1e-5, 2, 0.6)]
    assert setting(*runs)["lr"] == 1e-5


def test_a_collapsed_run_counts_as_an_accuracy_of_0():
    """One collapse of three costs a rate its mean, and does not shut it out; all collapsed are never chosen."""
    better = [run(1e-4, s, 0.8) for s in (0, 1)] + [collapsed(1e-4, 2)]
    assert setting(*better, *(run(1e-5, s, 0.6) for s in SEEDS))["lr"] == 1e-5  # 0.6 against 0.53
    assert setting(*better, *(run(1e-5, s, 0.5) for s in SEEDS))["lr"] == 1e-4
    line = setting(*better, *(collapsed(1e-5, s) for s in SEEDS))
    assert line["lr"] == 1e-4
    assert (line["n"], line["collapsed"], line["lacking"]) == (2, 1, 3)


def test_a_seed_without_a_run_at_the_chosen_rate_is_missing():
    """Tables of runs alone have no row for a cell that nobody ran."""
    cells = filled(*(run(lr, s, 0.7 - lr) for lr in (1e-5, 1e-4) for s in SEEDS))
    at = cells.set_index(["lr", "seed"]).index
    (line,) = over_seeds(choose(cells[~at.isin([(1e-5, 2), (1e-4, 1)])])).to_dict("records")
    assert (line["lr"], line["n"], line["seeds"]) == (1e-5, 2, 3)


def test_variants_choose_for_themselves():
    ks = [{"optimizer.k": k} for k in (2, 4)]
    runs = [run(1e-5, 0, 0.7, run_id='mezo-1e-05-0-{"optimizer.k": 2}')]
    runs += [run(1e-4, 0, 0.7, run_id='mezo-0.0001-0-{"optimizer.k": 4}')]
    rows = over_seeds(filled(*runs, variant=ks, run_id="mezo-{lr:g}-{seed}-{variant}"))
    assert (list(rows["k"]), list(rows["lr"])) == ([2, 4], [1e-5, 1e-4])


@pytest.mark.parametrize(
    ("measure", "worst", "best"), [("perplexity", 9.0, 4.0), ("exact_match", 0.2, 0.5), ("reward", -9.0, -4.0)]
)  # fmt: skip
def test_a_tasks_own_measure_chooses_the_rate_and_a_collapsed_run_never_wins(measure, worst, best):
    def measured(lr: float, value: float) -> list[dict[str, Any]]:
        accuracy = {"best/val_accuracy": np.nan, "best/test_accuracy": np.nan}
        own = {f"best/val_{measure}": value, f"best/test_{measure}": value + 1}
        return [run(lr, seed, 0, **accuracy, **own) for seed in SEEDS]

    lost = [collapsed(1e-4, seed) for seed in SEEDS[:2]]
    found = setting(*measured(1e-6, worst), *measured(1e-5, best), *measured(1e-4, best)[2:], *lost)
    assert (found["lr"], found["measure"], found["n"]) == (1e-5, measure, 3)
    assert (found["val_mean"], found["test_mean"]) == (best, best + 1)


def test_a_finished_run_without_its_numbers_lacks_and_takes_no_other_along():
    bad = run(1e-5, 0, 0.9) | {"best/test_accuracy": np.nan}
    rows = filled(bad, run(1e-5, 1, 0.7)).set_index("run_id")
    assert rows.loc["mezo-1e-05-0", "status"] == "incomplete"
    (said,) = shortfall(rows.reset_index())
    assert "8 of 9 runs of s lack (7 missing, 1 incomplete)" in said
    assert "without logging their numbers (mezo-1e-05-0)" in said


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ("table4", "sweep=table4"),
        ("compare_tune_best", "sweep=compare stage=tune_best"),
        ("compare_smollm2_long_tune", "sweep=compare_smollm2_long stage=tune"),
        ("of_no_file", "sweep=of_no_file"),
    ],
)
def test_the_command_of_a_stage_names_its_sweeps_file(sweep, words):
    assert command(sweep) == f"zo submit {words}"
