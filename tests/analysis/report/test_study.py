"""Effects that are put into a study must come out, with the right sign and verdict."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.logs.run_file import LogError
from analysis.report.claims_page import claims_markdown, summary
from analysis.report.study import accuracy_table, write_study
from analysis.report.table import markdown
from analysis.select.cell_runs import fill, over_seeds
from analysis.select.study_claims import claims_frame
from analysis.select.study_frames import accuracy_frame
from analysis.select.study_runs import Study, of_filled
from analysis.stats.intervals import holm
from tests.analysis.make_frames import LABELS, expected, made_frames

NAME, METHODS, LRS = "study_made", ("zero_shot", "mezo", "bszo", "bszo_b"), (1e-4, 1e-3)
PRECISIONS, FP32 = ("fp32", "bf16", "fp16"), {"precisions": ["fp32"]}


def cells(
    *methods: str, precisions: Iterable[str] = PRECISIONS, ending: str = "", **grid: Any
) -> pd.DataFrame:
    """The cells of one sweep: these methods, or all, with every precision, learning rate and seed."""
    every = expected(NAME + ending, optimizer=methods or METHODS, lr=LRS, seed=(0, 1, 2), **grid)
    untrained = every["optimizer"] == "zero_shot"
    every = every[~untrained | (every["lr"] == LRS[0])]
    every.loc[untrained, ["lr", "steps"]] = 0
    return pd.concat(
        [every.assign(precision=name, run_id=every["run_id"] + name) for name in precisions]
    )


PAIR = cells("mezo", "bszo", **FP32)


def made_study(cells: pd.DataFrame, **made: Callable[[dict], Any]) -> Study:
    """A study of these cells, whose runs are those of `made_frames`."""
    frames = made_frames(cells, **made)
    return of_filled(NAME, fill(cells, frames.runs), frames)


def of(**values: float) -> Callable[[dict], float]:
    """A number per method."""
    return lambda cell: values[cell["optimizer"]]


def row(frame: pd.DataFrame, claim: str, **wanted) -> dict:
    """The one row of a claim with these values; a quantity may be its beginning. BSZO against MeZO by default."""
    frame = frame[frame["claim"] == claim]
    for key, value in ({"what": "BSZO against MeZO"} | wanted).items():
        exact = frame[key] == value
        frame = frame[exact if exact.any() else frame[key].str.startswith(value)]
    (found,) = frame.to_dict("records")
    return found


@pytest.fixture(scope="module")
def claims() -> pd.DataFrame:
    """BSZO is 8 points ahead in fp32, level in bf16, 8 behind in fp16."""
    lead = {"fp32": 8, "bf16": 0, "fp16": -8}

    def accuracy(cell: dict) -> float:
        return 70 + (cell["optimizer"] == "bszo") * lead[cell["precision"]]

    return claims_frame(made_study(cells(), accuracy=accuracy))


@pytest.mark.parametrize(
    ("precision", "verdict", "lead"),
    [("fp32", "holds", 8), ("bf16", "open", 0), ("fp16", "contradicted", -8)],
)
def test_lead_in_accuracy(claims, precision, verdict, lead):
    found = row(claims, "i", precision=precision)
    assert found["verdict"] == verdict
    assert found["estimate"] == pytest.approx(lead, abs=1)
    assert found["low"] < lead < found["high"]
    assert (found["n"], found["examples"]) == (3, 400)
    clause = summary(claims, "i").partition(f"{precision}: ")[2].partition(f"{verdict}: ")[2]
    assert "against MeZO (" in clause.split(";")[0]


def test_changes_from_float32_are_in_no_family(claims) -> None:
    rows = claims[claims["claim"] == "iv"]
    changes = rows["what"].str.contains(" − ", regex=False)
    assert changes.any()
    assert rows.loc[changes, "p_holm"].isna().all()
    assert set(rows.loc[changes, "verdict"]) == {"–"}
    claimed = rows[~changes & rows["p_holm"].notna()]
    assert list(claimed["p_holm"]) == pytest.approx(holm(list(claimed["p_value"])))


def test_ahead_per_step_may_be_behind_per_forward_pass():
    frame = claims_frame(made_study(PAIR, loss=of(bszo=0.5, mezo=0.55)))
    per_step = row(frame, "ii", quantity="mean validation loss")
    assert per_step["verdict"] == "holds"
    assert per_step["estimate"] == pytest.approx(0.05 * 25 / 40, abs=1e-3)  # steps 10 to 40
    last = row(frame, "ii", quantity="last validation loss")
    assert last["estimate"] == pytest.approx(0.05, abs=1e-3)
    at = frame[(frame["claim"] == "ii") & frame["quantity"].str.contains("at step")]
    assert set(at["quantity"].str.split().str[-1]) == {"10", "20", "30", "40"}
    assert list(at["estimate"]) == pytest.approx([0.0125, 0.025, 0.0375, 0.05], abs=1e-3)
    per_forward = row(frame, "iii", quantity="mean validation loss")
    assert per_forward["quantity"].endswith("over 30 to 80 forward passes")
    mean_mezo, mean_bszo = 1 - 0.45 * 55 / 80, 1 - 0.5 * 55 / 120
    assert per_forward["estimate"] == pytest.approx(mean_mezo - mean_bszo, abs=1e-3)
    assert per_forward["verdict"] == "contradicted"


def test_a_study_is_written(tmp_path: Path) -> None:
    """Two points per doubling of k, one for m = k + 1, five for adaptive noise, three for a larger ε."""

    def accuracy(cell: dict) -> float:
        varied = json.loads(cell["variant"])
        gains = 2 * np.log2(varied.get("optimizer.k", 1)) + ("5b" in cell["sweep"])
        gains += 5 * varied.get("optimizer.adaptive_noise", False)
        return 60 + gains + 3 * ("optimizer.eps" in varied)

    ks = [{"optimizer.k": k} for k in (1, 2, 4)]
    noise = [{"optimizer.k": 1, "optimizer.adaptive_noise": on} for on in (True, False)]
    bf16 = {"precisions": ["bf16"]}
    sweeps = [
        cells("bszo", precisions=["fp32", "bf16"]),
        *(cells("bszo", ending=ending, variant=ks, **bf16) for ending in ("_5a", "_5b")),
        cells("bszo", ending="_5c", variant=noise, **bf16),
        cells("bszo", ending="_eps", variant=[{"optimizer.eps": 1e-3}], **bf16),
    ]
    write_study(made_study(pd.concat(sweeps), accuracy=accuracy), tmp_path)
    names = "accuracy.csv accuracy.md accuracy.tex ablation.csv ablation.md claims.csv claims.md"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names.split())
    claims = pd.read_csv(tmp_path / "claims.csv").set_index("what")["estimate"]
    assert claims["slope over log2 k = 1, 2, 4, m = k + 1"] == pytest.approx(2, abs=0.5)
    assert claims["m = k + 1 against m = k, mean over k"] == pytest.approx(1, abs=0.5)
    assert claims["adaptive noise on against off, k = 1"] == pytest.approx(5, abs=0.8)
    assert claims["BSZO, ε = 0.001 against its own"] == pytest.approx(3, abs=0.8)
    ablation = pd.read_csv(tmp_path / "ablation.csv")
    bold = ablation[ablation["bold"]]
    assert list(bold["setting"]) == [*["m = k + 1"] * 3, "with adaptive noise"]


def broken(cell: dict) -> str:
    """MeZO collapses in fp16, one seed of BSZO in bf16; nothing of BSZO-B has been run."""
    if cell["optimizer"] == "bszo_b":
        return "missing"
    if cell["optimizer"] == "mezo" and cell["precision"] == "fp16":
        return "collapsed"
    lost = cell["optimizer"] == "bszo" and cell["precision"] == "bf16" and cell["seed"] == 2
    return "collapsed" if lost else "finished"


def test_missing_and_collapsed_cells_are_said():
    study = made_study(cells(), status=broken)
    frame = accuracy_frame(study)
    page = markdown(accuracy_table(study, frame))
    mezo = next(line for line in page.splitlines() if line.startswith("| MeZO |"))
    assert mezo.split("|")[4].strip().startswith(r"\*")
    assert "`python -m launch.submit sweep=study_made` makes them" in page
    assert "1 of 3 seeds collapsed" in page
    assert not frame["bold"].any()  # a column waits until all of it is there
    claims = claims_frame(study)
    pair = row(claims, "i", precision="bf16")
    assert pair["n"] == 3  # a collapsed run gets nothing right
    assert pair["remark"] == "BSZO bf16: 2 collapsed of 6 runs"
    gone = row(claims, "i", precision="fp16")
    assert (gone["verdict"], gone["n"]) == ("–", 0)
    assert gone["remark"] == "MeZO fp16: 6 collapsed of 6 runs"
    assert "BSZO-B fp32: 6 missing of 6 runs" in claims_markdown(study, claims)


def test_different_examples_and_wrong_accuracies_are_refused():
    study = made_study(PAIR)
    study.filled["test_accuracy"] += 0.1
    with pytest.raises(LogError, match="logs a test accuracy of"):
        claims_frame(study)
    study.filled.loc[0, "labels"] = LABELS[::-1]
    with pytest.raises(LogError, match="tested on different examples"):
        claims_frame(study)


def test_a_rival_with_the_same_runs_is_said_and_not_counted() -> None:
    study = made_study(cells("zero_shot", "mezo", "bszo", **FP32))
    twin = study.filled[study.filled["optimizer"] == "mezo"].assign(optimizer="hizoo")
    both = Study(study.name, pd.concat([study.filled, twin], ignore_index=True), study.frames)
    assert (both.same_as("hizoo", "fp32"), both.same_as("bszo", "fp32")) == ("mezo", None)
    frame = claims_frame(both)
    found = row(frame, "i", what="BSZO against HiZOO")
    assert (found["verdict"], np.isnan(found["p_holm"])) == ("–", True)
    assert "HiZOO has the same test predictions as MeZO in every seed" in found["remark"]
    assert row(frame, "i")["p_holm"] == row(claims_frame(study), "i")["p_holm"]


def test_a_collapsed_seed_is_last_in_losses_and_gets_nothing_right() -> None:
    """MeZO is better than BSZO where it finishes, and collapses in seed 2 at both rates."""
    lost = PAIR[(PAIR["optimizer"] == "mezo") & (PAIR["seed"] == 2)].to_dict("records")
    study = made_study(
        PAIR,
        status=lambda cell: "collapsed" if cell in lost else "finished",
        accuracy=of(mezo=75, bszo=70),
        loss=of(mezo=0.4, bszo=0.5),
    )
    frame = claims_frame(study)
    found = row(frame, "i")
    assert (found["n"], found["estimate"]) == (3, pytest.approx((-5 - 5 + 69) / 3, abs=0.7))
    loss = row(frame, "ii", quantity="last validation loss")
    assert (loss["n"], np.isnan(loss["estimate"]), loss["verdict"]) == (3, True, "–")
    assert "with a collapse last, ahead in 1, behind in 2" in loss["remark"]


def test_equal_values_have_no_interval() -> None:
    study = made_study(PAIR)
    mezo = study.filled["optimizer"] == "mezo"
    for key in ("predictions", "test_accuracy"):
        study.filled.loc[mezo, key] = study.filled.loc[~mezo, key].to_numpy()
    found = row(claims_frame(study), "i")
    assert (found["estimate"], found["verdict"]) == (0, "–")
    assert np.isnan([found["low"], found["high"], found["p_value"]]).all()
    assert found["remark"] == "equal in all seeds: no interval"


def test_the_choice_of_the_rate_is_in_the_interval_of_an_accuracy() -> None:
    """MeZO's rates are close on validation and 20 points apart on the test: seeds decide between them."""
    study = made_study(PAIR, accuracy=of(mezo=60, bszo=80))
    mezo = study.filled["optimizer"] == "mezo"
    small = mezo & (study.filled["lr"] == LRS[0])
    study.filled.loc[mezo & ~small, "val_accuracy"] = [0.70, 0.72, 0.71]
    study.filled.loc[small, "val_accuracy"] = [0.72, 0.70, 0.70]
    found = row(claims_frame(study), "i")
    assert found["estimate"] == pytest.approx(20, abs=1)
    assert found["choice_high"] > 28  # where seed 0 is drawn twice, MeZO takes the rate with 50 %
    assert found["high"] >= found["choice_high"]
    study.filled.loc[small, "val_accuracy"] = 0.1
    assert row(claims_frame(study), "i")["high"] < 28


def test_a_grid_is_read_with_the_rates_beyond_its_edge() -> None:
    rows = cells("bszo", **FP32)
    beyond = rows[rows["lr"] == LRS[1]].assign(lr=1e-2, sweep="study_made_more")
    beyond["run_id"] += "-more"
    (edge,) = over_seeds(made_study(rows).filled).to_dict("records")
    (inside,) = over_seeds(made_study(pd.concat([rows, beyond])).filled).to_dict("records")
    assert (edge["lr"], edge["at_edge"]) == (1e-3, True)
    assert (inside["lr"], inside["at_edge"]) == (1e-3, False)
