"""Effects that are put into a study must come out, with the right sign and verdict."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.logs.run_file import LogError
from analysis.logs.sources import CACHE
from analysis.report.command import main
from analysis.report.figures.curves import loss_by_rate
from analysis.report.figures.histories import read
from analysis.report.figures.study import curves_figure
from analysis.report.study.ablation import ablation_frame
from analysis.report.study.accuracy import accuracy_frame, grid_frame
from analysis.report.study.claims_page import claims_markdown, summary
from analysis.report.study.larger_eps import eps_frame
from analysis.report.study.roundings_page import roundings_markdown, summaries
from analysis.report.study.tables import ablation_table, accuracy_table, eps_table, grid_table
from analysis.report.study.write import write_study
from analysis.report.table import markdown
from analysis.select import sweep_cells
from analysis.select.study_claims import claims_frame
from analysis.select.study_roundings import ALL, EXACT, GAIN, OWN, Roundings
from analysis.select.study_runs import of_filled
from analysis.select.trials import of_sweep
from tests.analysis.make_logs import config, history, write_run
from tests.analysis.make_logs import summary as log_summary
from tests.analysis.make_study import LABELS, LRS, NAME, Made, cells, made_study, main_cells

BSZO_ONLY = {"methods": ("bszo",)}


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


def test_a_study_without_a_roundings_sweep_has_none() -> None:
    assert Roundings(made_study(main_cells())).frame.empty


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


def test_loss_robustness_and_the_variant(claims):
    found = row(claims, claim="iv", what="BSZO loses less than MeZO", precision="bf16")
    assert found["verdict"] == "contradicted"  # it loses its lead of 8 points
    assert found["estimate"] == pytest.approx(-8, abs=1.5)
    change = row(claims, claim="iv", what="BSZO, bf16 − fp32")
    assert change["estimate"] == pytest.approx(-8, abs=1)
    assert change["verdict"] == "–"  # a measurement, no claim
    found = row(claims, claim="vii", precision="fp32", quantity="test accuracy")
    assert found["verdict"] == "contradicted"


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


def subspace(cell: dict) -> float:
    """3 points per doubling of k, 5 for m = k + 1, 6 for adaptive noise."""
    varied = json.loads(cell["variant"])
    gain = 3 * np.log2(varied.get("optimizer.k", 1))
    gain += 5 * cell["sweep"].endswith("_5b") + 6 * varied.get("optimizer.adaptive_noise", False)
    return 60 + gain


def ablation_cells() -> list[dict]:
    ks = {"optimizer.k": (1, 2, 4)}
    fp32, bf16 = {**BSZO_ONLY, "precisions": ("fp32",)}, {**BSZO_ONLY, "precisions": ("bf16",)}
    noise = {**ks, "optimizer.adaptive_noise": (True, False)}
    return [*cells("_5a", ks, **fp32), *cells("_5b", ks, **fp32), *cells("_5c", noise, **bf16)]


@pytest.mark.process
def test_k_m_and_noise():
    study = made_study([*main_cells(), *ablation_cells()], Made(accuracy=subspace))
    frame = claims_frame(study)
    slope = row(frame, claim="v", what="slope over log2 k = 1, 2, 4, m = k + 1")
    assert (slope["verdict"], slope["estimate"]) == ("holds", pytest.approx(3, abs=0.5))
    m = row(frame, claim="v", what="m = k + 1 against m = k, mean over k")
    assert (m["verdict"], m["estimate"]) == ("holds", pytest.approx(5, abs=0.6))
    noise = row(frame, claim="vi", what="adaptive noise on against off, k = 2")
    assert (noise["precision"], noise["verdict"]) == ("bf16", "holds")
    assert noise["estimate"] == pytest.approx(6, abs=1)
    table = ablation_frame(study)
    best = row(table, part="b", k=4)
    assert best["bold"]
    assert best["test_mean"] == pytest.approx(71, abs=1)
    assert not row(table, part="a", k=4)["bold"]
    assert "| (c) | with adaptive noise | bf16 |" in markdown(ablation_table(study, table))


def test_tables_choose_by_validation_and_mark_the_two_best():
    study = made_study(main_cells(), Made(accuracy=ahead))
    frame = accuracy_frame(study)
    fp32 = frame[frame["precision"] == "fp32"].set_index("method")
    assert set(fp32["lr"]) == {0.0, LRS[1]}
    values = [100 * run["test_accuracy"] for run in study.runs("bszo", "fp32").values()]
    assert fp32.loc["bszo", "test_mean"] == pytest.approx(np.mean(values))
    assert fp32.loc["bszo", "test_std"] == pytest.approx(np.std(values, ddof=1))
    assert fp32.loc["bszo", "bold"]
    assert fp32["bold"].sum() == 2
    page = markdown(accuracy_table(study, frame))
    assert page.splitlines()[4].startswith("| zero-shot |")
    grid = grid_frame(study)
    assert grid.groupby(["method", "precision"])["chosen"].sum().eq(1).all()
    assert f"→ {LRS[1]:g}" in markdown(grid_table(study, grid))


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


def rounded(cell: dict) -> float:
    """In bf16 rounding the update costs 8 points, the loss 4 if the restoring is rounded too; fp16 costs nothing."""
    varied = json.loads(cell["variant"])
    if cell["precision"] != "bf16" or not varied:
        return 70
    loss, restore, update = (varied[key] != exact for key, exact in EXACT.items())
    return 70 - 8 * update - 4 * (loss and restore)


@pytest.fixture(scope="module")
def roundings() -> Roundings:
    values = {key: ("rounded", exact) for key, exact in EXACT.items()}
    methods = {"methods": ("mezo", "bszo"), "precisions": ("bf16", "fp16")}
    rows = [*main_cells(), *cells("_roundings", values, **methods)]
    loss = Made(accuracy=rounded, loss=lambda cell: 1.2 - rounded(cell) / 100)
    return Roundings(made_study(rows, loss))


@pytest.mark.process
def test_factorial_finds_the_rounding_that_matters(roundings):
    frame = roundings.frame[roundings.frame["rates"] == OWN]
    bszo = {"method": "bszo", "precision": "bf16", "quantity": "test accuracy"}
    effects = {"update": (8, "holds"), "loss": (2, "holds"), "restore": (2, "holds")}
    effects |= {"loss × restore": (-2, "contradicted"), "loss × update": (0, "open")}
    for what, (size, verdict) in effects.items():
        kind = "interaction" if "×" in what else "main effect"
        found = row(frame[frame["what"] == what], kind=kind, **bszo)
        assert found["estimate"] == pytest.approx(size, abs=0.5), what
        if size:
            assert found["low"] < size < found["high"]
        assert found["verdict"] in (verdict, "open"), what
    assert row(frame[frame["what"] == "update"], kind="main effect", **bszo)["verdict"] == "holds"
    gap = row(frame, kind="loss from fp32", **bszo)
    assert gap["estimate"] == pytest.approx(12, abs=1)
    share = row(frame[frame["what"] == "update"], kind="share of it", **bszo)
    assert share["estimate"] == pytest.approx(100 * 8 / 12, abs=6)
    in_fp16 = row(
        frame[frame["what"] == "update"], **bszo | {"precision": "fp16"}, kind="share of it"
    )
    assert np.isnan(in_fp16["estimate"])  # nothing is lost, so there is nothing to explain


def test_what_one_thing_exact_gains_needs_no_factorial(roundings):
    """As `rounded` makes it in bf16: update 8 points alone; the loss and the restore share 4."""
    part = roundings.study.filled
    alone = part["variant"].map(lambda v: sum(v.count(exact) for exact in EXACT.values()) in (0, 1))
    study = of_filled(NAME, part[alone], roundings.study.frames)
    found = Roundings(study)
    frame = found.frame[(found.frame["rates"] == OWN) & (found.frame["kind"] == GAIN)]
    bf16 = {"precision": "bf16", "quantity": "test accuracy"}
    whole = roundings.frame[(roundings.frame["rates"] == OWN) & (roundings.frame["kind"] == GAIN)]
    for method in ("bszo", ALL):
        update = row(frame[frame["what"] == "update"], method=method, **bf16)
        assert update["estimate"] == pytest.approx(8, abs=1)
        assert update["verdict"] == "holds"
        same = row(whole[whole["what"] == "update"], method=method, **bf16)
        assert same["estimate"] == update["estimate"]
    everything = row(whole[whole["what"] == "everything"], method="bszo", **bf16)
    assert everything["estimate"] == pytest.approx(12, abs=1)
    assert any(line.startswith("bf16, test accuracy: exactness") for line in summaries(found))


def test_losses_count_with_their_sign_turned(roundings):
    frame = roundings.frame
    loss = {"precision": "bf16", "quantity": "final validation loss", "rates": OWN}
    update = row(frame[frame["what"] == "update"], kind="main effect", method=ALL, **loss)
    assert update["estimate"] == pytest.approx(0.08, abs=1e-3)
    assert update["verdict"] == "holds"
    level = row(frame[frame["what"] == "all rounded"], kind="level", method="bszo", **loss)
    assert level["estimate"] == pytest.approx(1.2 - 0.58 + 0.01, abs=1e-3)
    assert any(
        "bf16, final validation loss" in line and "update" in line for line in summaries(roundings)
    )
    assert "| bf16 | BSZO |" in roundings_markdown(roundings)


def test_figure_1_has_a_column_per_precision_and_a_line_per_rate():
    study = made_study(main_cells(), Made(status=broken))
    there = of_sweep(NAME, study.filled, study.frames.runs, study.frames.history.one)
    assert there is not None
    figure = loss_by_rate(there, read(there))
    assert figure is not None
    assert [panel.title for panel in figure.panels[:3]] == [
        f"MeZO, every learning rate · {precision}" for precision in ("bf16", "fp16", "fp32")
    ]
    lines = [series for series in figure.panels[2].series if series.shape == "line"]
    assert len(lines) == len(LRS)  # the three seeds of a rate are one line, their mean
    assert lines[0].y[-1] == pytest.approx(0.5 + 0.01)
    assert all(len(series.runs.split()) == 3 for series in lines)


@pytest.mark.process
def test_all_files_are_written_even_of_a_part(tmp_path, roundings, capsys):
    names = {path.name for path in write_study(roundings.study, tmp_path)}
    for stem, endings in {
        "accuracy": "csv md tex",
        "grid": "csv md",
        "ablation": "csv md",
        "claims": "csv md",
        "curves": "csv png pdf",
        "roundings": "csv md png pdf",
        "provenance": "json",
    }.items():
        assert {f"{stem}.{ending}" for ending in endings.split()} <= names
    kept = json.loads((tmp_path / "provenance.json").read_text())
    assert len(kept["runs"]) == len(roundings.study.frames.runs)
    assert "conf/sweep has no study_made_5a.yaml" in (tmp_path / "claims.md").read_text()
    figure = curves_figure(roundings.study)
    assert figure is not None
    assert {len(s.runs.split()) for panel in figure.panels for s in panel.series} == {3}


@pytest.mark.process
def test_command_reads_what_wandb_wrote(tmp_path: Path, capsys):
    """Two seeds of two methods of the real study, its thousand other cells missing."""
    wanted = sweep_cells.cells((), CACHE)
    shutil.copytree(CACHE / "expected", tmp_path / "cache" / "expected")
    main_sweep = wanted[(wanted["sweep"] == "study_tiny") & (wanted["precision"] == "fp32")]
    for method, correct in (("mezo", 10), ("bszo", 18)):
        mine = main_sweep[(main_sweep["optimizer"] == method) & (main_sweep["seed"] < 2)]
        for cell in mine.drop_duplicates("seed").to_dict("records"):
            rows = [
                r | {"eval/val_loss": 0.6 - r["step"] / 1000} for r in history(3, [0.5, 0.6, 0.7])
            ]
            settings = config(method, cell["lr"], seed=cell["seed"])
            final = log_summary(3, [0.5, 0.6, 0.7], correct + cell["seed"])
            write_run(tmp_path / "out", cell["run_id"], settings, rows, final, "study_tiny")
    options = ["--cache", str(tmp_path / "cache"), "--results", str(tmp_path / "results")]
    runs = ["--runs", str(tmp_path / "out")]
    assert main(["study", "study_tiny", *runs, *options]) == 0
    printed = capsys.readouterr().out
    assert "52.50 ± 3.54 (2)" in printed
    assert "92.50 ± 3.54 (2)" in printed
    claims = pd.read_csv(tmp_path / "results" / "study_tiny" / "claims.csv")
    lead = row(claims, claim="i", what="BSZO against MeZO", precision="fp32")
    assert (lead["estimate"], lead["n"], lead["examples"]) == (40, 2, 20)
    page = (tmp_path / "results" / "study_tiny" / "roundings.md").read_text()
    assert "864 of 864 runs of study_tiny_roundings lack" in page
    assert main(["study", "study_smollm", *runs, *options]) == 2
    assert "there is no study study_smollm" in capsys.readouterr().err


def test_a_larger_eps_stands_beside_the_studys_own_and_float32():
    grid = {"methods": ("mezo", "bszo"), "precisions": ("bf16",)}
    rows = main_cells(methods=("mezo", "bszo")) + cells("_eps", {"optimizer.eps": (1e-3,)}, **grid)
    better = Made(accuracy=lambda cell: 76 if "eps" in cell["variant"] else 68)
    frame = eps_frame(made_study(rows, better))
    found = row(frame, method="bszo", precision="bf16", eps=1e-3)
    assert found["gain"] == pytest.approx(8, abs=1)
    assert 0 < found["low"] < found["gain"] < found["high"]
    assert (found["n"], found["lr"]) == (3, max(LRS))
    assert list(frame["precision"]) == ["fp32", "bf16", "bf16"] * 2
    page = markdown(eps_table(made_study(rows, better), frame))
    assert "| BSZO | bf16 | 0.001 | 0.001 | 75.92 ± 1.26 (3) |" in page
    lacking = eps_frame(made_study(rows, Made(status=lambda c: "missing")))
    assert lacking["n"].sum() == 0
    assert "| MeZO | bf16 | 0.001 | – |" in markdown(eps_table(made_study(rows), lacking))
    assert eps_frame(made_study(main_cells())).empty
