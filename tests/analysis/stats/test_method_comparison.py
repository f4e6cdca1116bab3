"""Comparisons of methods, on numbers small enough for a hand."""

import pandas as pd
import pytest

from analysis.paper.printed_numbers import load
from analysis.select.cell_runs import fill
from analysis.select.method_scores import measured_cells, measured_runs, paper_runs
from analysis.stats.method_comparison import cell_tests, conclusion, paired_differences
from tests.analysis.make_frames import expected


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


def test_an_average_needs_every_run_of_every_task() -> None:
    runs = paper_runs(load())
    lacks_one = runs.drop(runs.index[(runs["task"] == "rte") & (runs["method"] == "mezo")][0])
    assert "avg" not in set(paired_differences(lacks_one, ["bszo", "mezo"])["task"])


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


def test_runs_of_several_seeds() -> None:
    """Accuracies in %; a collapsed run at the chosen rate gets nothing right; NaN for a cell of which all collapsed."""
    accuracies = {"bszo": (0.8, 0.9), "mezo": (None, 0.6), "lozo": (None, None)}
    asked = expected(optimizer=accuracies, seed=[0, 1])
    same = {"duplicates": 0, "best/step": 1, "best/val_accuracy": 0.5, "best/val_n": 9}
    runs = [
        {
            "run_id": cell["run_id"],
            "status": "finished" if accuracy else "collapsed",
            "best/test_accuracy": accuracy,
            "best/test_n": 100,
        }
        | same
        for cell in asked.to_dict("records")
        for accuracy in [accuracies[cell["optimizer"]][cell["seed"]]]
    ]
    filled = fill(asked, pd.DataFrame(runs))
    assert measured_runs(filled)[["method", "run", "accuracy"]].to_numpy().tolist() == [
        ["bszo", 0, 80.0],
        ["bszo", 1, 90.0],
        ["mezo", 0, 0.0],
        ["mezo", 1, 60.0],
    ]
    cells = measured_cells(filled).set_index("method")["accuracy"]
    assert [cells["bszo"], cells["mezo"]] == pytest.approx([85.0, 30.0])
    assert pd.isna(cells["lozo"])
