"""What decides a claim: families, collapses, equal runs and the choice of the learning rate."""

import json

import numpy as np
import pandas as pd
import pytest

from analysis.select.cell_runs import over_seeds
from analysis.select.study_claims import claims_frame
from analysis.select.study_runs import Study
from analysis.stats.intervals import holm
from tests.analysis.make_study import LRS, Made, made_study, main_cells

FP32 = {"precisions": ("fp32",)}


def claim(frame: pd.DataFrame, name: str, what: str, quantity: str = "test accuracy") -> dict:
    rows = frame[(frame["claim"] == name) & (frame["what"] == what)]
    (found,) = rows[rows["quantity"].str.startswith(quantity)].to_dict("records")
    return found


def two_methods(**made) -> Study:
    return made_study(main_cells(methods=("mezo", "bszo"), **FP32), Made(**made))


def test_changes_from_float32_are_in_no_family() -> None:
    frame = claims_frame(made_study(main_cells()))
    rows = frame[frame["claim"] == "iv"]
    changes = rows["what"].str.contains(" − ", regex=False)
    assert changes.any()
    assert rows.loc[changes, "p_holm"].isna().all()
    assert set(rows.loc[changes, "verdict"]) == {"–"}
    claimed = rows[~changes & rows["p_holm"].notna()]
    assert list(claimed["p_holm"]) == pytest.approx(holm(list(claimed["p_value"])))


def test_a_rival_with_the_same_runs_is_said_and_not_counted() -> None:
    study = made_study(main_cells(methods=("zero_shot", "mezo", "bszo"), **FP32))
    twin = study.filled[study.filled["optimizer"] == "mezo"].assign(optimizer="hizoo")
    both = Study(study.name, pd.concat([study.filled, twin], ignore_index=True), study.frames)
    assert (both.same_as("hizoo", "fp32"), both.same_as("bszo", "fp32")) == ("mezo", None)
    frame, without = claims_frame(both), claims_frame(study)
    found = claim(frame, "i", "BSZO against HiZOO")
    assert (found["verdict"], np.isnan(found["p_holm"])) == ("–", True)
    assert "HiZOO has the same test predictions as MeZO in every seed" in found["remark"]
    mezo = claim(frame, "i", "BSZO against MeZO")
    assert mezo["p_holm"] == claim(without, "i", "BSZO against MeZO")["p_holm"]


def test_a_collapsed_seed_is_last_in_losses_and_gets_nothing_right() -> None:
    """MeZO is better than BSZO where it finishes, and collapses in seed 2 at both rates."""

    def status(cell: dict) -> str:
        lost = cell["optimizer"] == "mezo" and cell["seed"] == 2
        return "collapsed" if lost else "finished"

    frame = claims_frame(
        two_methods(
            status=status,
            accuracy=lambda cell: 75.0 if cell["optimizer"] == "mezo" else 70.0,
            loss=lambda cell: 0.4 if cell["optimizer"] == "mezo" else 0.5,
        )
    )
    found = claim(frame, "i", "BSZO against MeZO")
    assert (found["n"], found["estimate"]) == (3, pytest.approx((-5 - 5 + 69) / 3, abs=0.7))
    loss = claim(frame, "ii", "BSZO against MeZO", "last validation loss")
    assert (loss["n"], np.isnan(loss["estimate"]), loss["verdict"]) == (3, True, "–")
    assert "with a collapse last, ahead in 1, behind in 2" in loss["remark"]


def test_equal_values_have_no_interval() -> None:
    study = two_methods(accuracy=lambda cell: 70.0)
    mezo = study.filled["optimizer"] == "mezo"
    for key in ("predictions", "test_accuracy"):
        study.filled.loc[mezo, key] = study.filled.loc[~mezo, key].to_numpy()
    found = claim(claims_frame(study), "i", "BSZO against MeZO")
    assert (found["estimate"], found["verdict"]) == (0, "–")
    assert np.isnan([found["low"], found["high"], found["p_value"]]).all()
    assert found["remark"] == "equal in all seeds: no interval"


def test_the_choice_of_the_rate_is_in_the_interval_of_an_accuracy() -> None:
    """MeZO's rates are close on validation and 20 points apart on the test: seeds decide between them."""

    def accuracy(cell: dict) -> float:
        return 80.0 if cell["optimizer"] == "bszo" else 60.0

    study = two_methods(accuracy=accuracy)
    mezo = study.filled["optimizer"] == "mezo"
    small = mezo & (study.filled["lr"] == LRS[0])
    study.filled.loc[mezo & ~small, "val_accuracy"] = [0.70, 0.72, 0.71]
    study.filled.loc[small, "val_accuracy"] = [0.72, 0.70, 0.70]
    found = claim(claims_frame(study), "i", "BSZO against MeZO")
    assert found["estimate"] == pytest.approx(20, abs=1)
    assert found["choice_high"] > 28  # where seed 0 is drawn twice, MeZO takes the rate with 50 %
    assert found["high"] >= found["choice_high"]
    study.filled.loc[small, "val_accuracy"] = 0.1
    assert claim(claims_frame(study), "i", "BSZO against MeZO")["high"] < 28


def test_a_grid_is_read_with_the_rates_beyond_its_edge() -> None:
    rows = main_cells(methods=("bszo",), **FP32)
    beyond = [
        cell | {"sweep": "study_made_more", "lr": 1e-2, "run_id": cell["run_id"] + "-more"}
        for cell in rows
        if cell["lr"] == LRS[1]
    ]
    alone, extended = made_study(rows), made_study([*rows, *beyond])
    (edge,) = over_seeds(alone.filled).to_dict("records")
    (inside,) = over_seeds(extended.filled).to_dict("records")
    assert (edge["lr"], edge["at_edge"], inside["lr"], inside["at_edge"]) == (
        1e-3,
        True,
        1e-3,
        False,
    )
    assert json.loads(inside["variant"]) == {}
