"""Comparisons of methods, on numbers small enough for a hand."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from analysis.paper.printed_numbers import DIRECTORY, METHODS, load
from analysis.report.command import main
from analysis.select import sweep_cells
from analysis.select.method_scores import measured_cells, measured_runs, paper_families, paper_runs
from analysis.stats.method_comparison import cell_tests, conclusion, paired_differences, ranks
from tests.analysis.make_logs import config, history, summary, write_run


def scores(**accuracies: list[float]) -> pd.DataFrame:
    """Cells of one model: a list of accuracies per method, one per task; nan is a collapse."""
    return pd.DataFrame(
        [
            {"model": "m", "task": f"t{i}", "method": method, "accuracy": value, "n": 100}
            for method, values in accuracies.items()
            for i, value in enumerate(values)
        ]
    )


def test_paired_differences_of_table_11() -> None:
    """BSZO and MeZO on RTE: 68.59 − 69.68, 68.23 − 68.95, 69.68 − 65.70, 66.07 − 65.34, 66.43 − 62.09."""
    frame = paired_differences(paper_runs(load()), ["bszo", "mezo"]).set_index("task")
    row = frame.loc["rte"]
    assert row["n"] == 5
    assert row["difference"] == pytest.approx((-1.09 - 0.72 + 3.98 + 0.73 + 4.34) / 5)
    assert -1.09 < row["low"] < row["difference"] < row["high"] < 4.34
    assert frame.loc["avg", "difference"] == pytest.approx(77.28 - 77.04, abs=0.02)
    assert list(frame.index) == ["sst2", "rte", "cb", "wic", "trec", "avg"]


def test_runs_without_a_partner_are_not_paired() -> None:
    runs = pd.DataFrame(
        [("m", "t", "bszo", r, 50.0 + r) for r in (1, 2, 3)]
        + [("m", "t", "mezo", r, 50.0) for r in (2, 3, 4)],
        columns=["model", "task", "method", "run", "accuracy"],
    )
    (row,) = paired_differences(runs, ["bszo", "mezo"]).to_dict("records")
    assert (row["n"], row["difference"]) == (2, 2.5)


def test_wins_collapses_and_noise() -> None:
    nan = float("nan")
    frame = cell_tests(scores(bszo=[90, 80, 70, 60], mezo=[50, 80, nan, 61]), ["bszo", "mezo"])
    (row,) = frame.to_dict("records")
    assert (row["wins"], row["ties"], row["losses"], row["left_out"]) == (2, 1, 1, 1)
    assert row["mean_difference"] == pytest.approx((40 + 0 - 1) / 3)
    assert row["within_noise"] == 2  # 0 and -1; 40 points of 100 examples are beyond it
    assert row["sign_p"] == 1.0
    # Of 40, 0, a collapse of the other and −1 the ranks are 2, none, 3 and −1.
    assert row["wilcoxon_p"] == pytest.approx(2 * 2 / 2**3)


def test_correction_is_over_all_pairs() -> None:
    better = [float(v) for v in range(60, 70)]
    frame = cell_tests(
        scores(bszo=better, mezo=[v - 1 - i / 10 for i, v in enumerate(better)], lozo=better),
        ["bszo", "mezo", "lozo"],
    )
    p = frame.set_index(["first", "second"])
    assert p.loc[("bszo", "mezo"), "wilcoxon_p"] == pytest.approx(2 / 2**10)
    assert p.loc[("bszo", "mezo"), "wilcoxon_holm"] == pytest.approx(3 * 2 / 2**10)
    assert p.loc[("bszo", "lozo"), "wilcoxon_holm"] == 1.0


def test_ranks_need_every_method() -> None:
    cells = scores(a=[3, 3, 3], b=[2, 2, 2], c=[1, float("nan"), 1])
    kept, result = ranks(cells.drop(index=8), ["a", "b", "c"])  # c has no third cell
    assert (kept, result.cells, result.average) == (["a", "b", "c"], 2, [1.0, 2.0, 3.0])


def test_conclusion_turns_with_the_data() -> None:
    up, down = [float(v) for v in range(60, 75)], [float(v) / 2 for v in range(60, 75)]
    none = pd.DataFrame()
    won = conclusion(
        cell_tests(scores(bszo=up, mezo=down), ["bszo", "mezo"]), none, "bszo", ["mezo"]
    )
    lost = conclusion(
        cell_tests(scores(bszo=down, mezo=up), ["bszo", "mezo"]), none, "bszo", ["mezo"]
    )
    assert "BSZO is above MeZO (15 of 15 cells, +33.50 points" in won
    assert "BSZO is reliably above no other method" in lost
    assert "nothing can be said about the spread between seeds" in won
    assert won.count(". ") == 0  # one sentence
    alone = conclusion(
        cell_tests(scores(lozo=up, mezo=down), ["lozo", "mezo"]), none, "bszo", ["mezo"]
    )
    assert alone.endswith("nothing can be said.")


def test_paper_families() -> None:
    """18 cells of Table 3 and 5 of Table 1; MeZO-Adam lacks the 6 of Mistral-7B."""
    everything, without_adam, table3 = paper_families(load())
    for family, method, count in (
        (everything, "bszo", 23),
        (everything, "mezo_adam", 17),
        (without_adam, "lozo", 23),
        (table3, "lozo", 18),
    ):
        assert (family.cells["method"] == method).sum() == count
    assert set(everything.cells["method"]) == set(METHODS)
    assert everything.cells["accuracy"].isna().sum() == 2


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copytree(DIRECTORY, tmp_path / "paper")
    assert main(["audit", "--paper", str(copy), "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "BSZO is above MeZO (19 of 23 cells, +3.22 points" in shown
    for name in ("statistics.md", "differences.csv", "tests.csv", "ranks.csv"):
        assert (copy / name).read_bytes() == (DIRECTORY / name).read_bytes()
    (copy / "table3.csv").unlink()
    assert main(["audit", "--paper", str(copy)]) == 2
    assert "there is no file" in capsys.readouterr().err


def test_command_on_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two methods, each with the better of two learning rates: 13 and 17 of 20 examples."""
    cells = sweep_cells.cells(["quickstart"], tmp_path / "cache")
    out, results = tmp_path / "out", tmp_path / "results"
    arguments = ["--runs", str(out), "--cache", str(tmp_path / "cache"), "--results", str(results)]
    out.mkdir()
    assert main(["compare", "quickstart", *arguments]) == 2
    assert "no two methods have a finished run in quickstart" in capsys.readouterr().err
    for method, place, best, correct in (
        *(("mezo", 0, 0.7, 13), ("mezo", 1, 0.6, 19)),
        ("bszo", 0, 0.6, 17),
    ):
        run_id = cells[cells["optimizer"] == method]["run_id"].iloc[place]
        accuracies = [0.5, best]
        write_run(
            out,
            run_id,
            config(method, 1e-4),
            history(2, accuracies),
            summary(2, accuracies, correct),
        )
    assert main(["compare", "quickstart", *arguments]) == 0
    (row,) = pd.read_csv(results / "tables" / "tests.csv").to_dict("records")
    assert (row["first"], row["second"], row["wins"], row["cells"]) == ("bszo", "mezo", 1, 1)
    assert row["mean_difference"] == pytest.approx(100 * (17 - 13) / 20)
    page = (results / "tables" / "statistics.md").read_text()
    assert "nothing can be said about the spread between seeds" in page
    assert "No ranks" in page
    assert main(["compare", "table5_a", *arguments]) == 2
    assert "varies" in capsys.readouterr().err


def test_runs_of_several_seeds() -> None:
    """Seeds in %, without those that have not ended; a cell is their mean, and NaN if all collapsed."""
    seeds = [
        *(("bszo", 0, "finished", 0.8), ("bszo", 1, "finished", 0.9), ("bszo", 2, "missing", None)),
        *(("mezo", 0, "collapsed", None), ("zero_shot", 0, "finished", 0.5)),
    ]
    chosen = pd.DataFrame(
        [
            {
                "sweep": "s",
                "model": "m",
                "task": "t",
                "optimizer": method,
                "precision": "fp32",
                "variant": "{}",
                "seed": seed,
                "steps": 0 if method == "zero_shot" else 10,
                "status": status,
                "test_accuracy": accuracy,
                "lr": 1e-4,
                "at_edge": False,
                "test_n": 100,
                "run_id": f"{method}{seed}",
                "val_accuracy": 0.5,
                **dict.fromkeys(
                    ("step_ms", "peak_gib", "state_mib", "n_expected", "n_finished"), 0.0
                ),
                **{f"n_{s}": 0 for s in ("collapsed", "unfinished", "missing", "duplicated")},
            }
            for method, seed, status, accuracy in seeds
        ]
    )
    assert measured_runs(chosen)[["method", "run", "accuracy"]].to_numpy().tolist() == [
        ["bszo", 0, 80.0],
        ["bszo", 1, 90.0],
        ["mezo", 0, 0.0],  # a collapsed run at the chosen rate gets nothing right
    ]
    cells = measured_cells(chosen).set_index("method")["accuracy"]
    assert cells["bszo"] == pytest.approx(85.0)
    assert pd.isna(cells["mezo"])
    assert "zero_shot" not in cells
