"""Effects that are put into a study must come out, with the right sign and verdict."""

import pandas as pd
import pytest

from analysis.logs.run_file import LogError
from analysis.report.study.claims_page import claims_markdown, summary
from analysis.report.study.tables import accuracy_table
from analysis.report.table import markdown
from analysis.select.study_claims import claims_frame
from analysis.select.study_frames import accuracy_frame
from tests.analysis.make_study import LABELS, Made, made_study, main_cells


def row(frame: pd.DataFrame, **wanted):
    """The one row with these values; a quantity may be its beginning."""
    for key, value in wanted.items():
        exact = frame[key] == value
        frame = frame[exact if exact.any() else frame[key].str.startswith(value)]
    (found,) = frame.to_dict("records")
    return found


def ahead(cell: dict) -> float:
    """BSZO is 8 points ahead in fp32, level in bf16, 8 behind in fp16."""
    lead = {"fp32": 8, "bf16": 0, "fp16": -8}[cell["precision"]]
    return 70 + (lead if cell["optimizer"] == "bszo" else 0)


@pytest.fixture(scope="module")
def claims() -> pd.DataFrame:
    return claims_frame(made_study(main_cells(), Made(accuracy=ahead)))


@pytest.mark.parametrize(
    ("precision", "verdict", "lead"),
    [("fp32", "holds", 8), ("bf16", "open", 0), ("fp16", "contradicted", -8)],
)
def test_lead_in_accuracy(claims, precision, verdict, lead):
    found = row(claims, claim="i", what="BSZO against MeZO", precision=precision)
    assert found["verdict"] == verdict
    assert found["estimate"] == pytest.approx(lead, abs=1)
    assert found["low"] < lead < found["high"]
    assert (found["n"], found["examples"]) == (3, 400)
    assert verdict in summary(claims, "i").partition(f"{precision}: ")[2].split(";")[0]


def test_ahead_per_step_may_be_behind_per_forward_pass():
    made = Made(loss=lambda cell: 0.5 if cell["optimizer"] == "bszo" else 0.55)
    frame = claims_frame(made_study(main_cells(methods=("mezo", "bszo")), made))
    per_step = row(frame, claim="ii", precision="fp32", quantity="mean validation loss")
    assert per_step["verdict"] == "holds"
    assert per_step["estimate"] == pytest.approx(
        0.05 * 25 / 40, abs=1e-3
    )  # mean over steps 10 to 40
    last = row(frame, claim="ii", precision="fp32", quantity="last validation loss")
    assert last["estimate"] == pytest.approx(0.05, abs=1e-3)
    at = frame[(frame["claim"] == "ii") & frame["quantity"].str.contains("at step")]
    assert set(at["quantity"].str.split().str[-1]) == {"10", "20", "30", "40"}
    per_forward = row(frame, claim="iii", precision="fp32", quantity="mean validation loss")
    assert per_forward["quantity"].endswith("over 30 to 80 forward passes")
    mean_mezo, mean_bszo = 1 - 0.45 * 55 / 80, 1 - 0.5 * 55 / 120
    assert per_forward["estimate"] == pytest.approx(mean_mezo - mean_bszo, abs=1e-3)
    assert per_forward["verdict"] == "contradicted"


def broken(cell: dict) -> str:
    """MeZO collapses in fp16, one seed of BSZO in bf16; nothing of BSZO-B has been run."""
    if cell["optimizer"] == "bszo_b":
        return "missing"
    if cell["optimizer"] == "mezo" and cell["precision"] == "fp16":
        return "collapsed"
    lost = cell["optimizer"] == "bszo" and cell["precision"] == "bf16" and cell["seed"] == 2
    return "collapsed" if lost else "finished"


def test_missing_and_collapsed_cells_are_said():
    study = made_study(main_cells(), Made(accuracy=ahead, status=broken))
    frame = accuracy_frame(study)
    page = markdown(accuracy_table(study, frame))
    mezo = next(line for line in page.splitlines() if line.startswith("| MeZO |"))
    assert mezo.split("|")[4].strip().startswith(r"\*")
    assert "`python -m launch.submit sweep=study_made` makes them" in page
    assert "1 of 3 seeds collapsed" in page
    assert not frame["bold"].any()  # a column waits until all of it is there
    claims = claims_frame(study)
    pair = row(claims, claim="i", what="BSZO against MeZO", precision="bf16")
    assert pair["n"] == 3  # a collapsed run gets nothing right
    assert pair["remark"] == "BSZO bf16: 2 collapsed of 6 runs"
    gone = row(claims, claim="i", what="BSZO against MeZO", precision="fp16")
    assert (gone["verdict"], gone["n"]) == ("–", 0)
    assert gone["remark"] == "MeZO fp16: 6 collapsed of 6 runs"
    assert "BSZO-B fp32: 6 missing of 6 runs" in claims_markdown(study, claims)


def test_different_examples_and_wrong_accuracies_are_refused():
    study = made_study(main_cells())
    study.filled.loc[0, "labels"] = LABELS[::-1]
    with pytest.raises(LogError, match="tested on different examples"):
        claims_frame(study)
    study = made_study(main_cells())
    study.filled["test_accuracy"] += 0.1
    with pytest.raises(LogError, match="logs a test accuracy of"):
        claims_frame(study)
