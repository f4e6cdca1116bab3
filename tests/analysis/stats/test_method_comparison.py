"""Comparisons of methods, on numbers small enough for a hand."""

from math import sqrt

import numpy as np
import pandas as pd
import pytest
from scipy.stats import friedmanchisquare, rankdata

from analysis.paper.printed_numbers import load
from analysis.stats.method_comparison import cell_tests, conclusion, paired_differences, ranks

PRINTED = load().rows("table11").rename(columns={"value": "accuracy"})


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
    frame = paired_differences(PRINTED, ["bszo", "mezo"]).set_index("task")
    row = frame.loc["rte"]
    assert row["n"] == 5
    assert row["difference"] == pytest.approx((-1.09 - 0.72 + 3.98 + 0.73 + 4.34) / 5)
    assert -1.09 < row["low"] < row["difference"] < row["high"] < 4.34
    assert frame.loc["avg", "difference"] == pytest.approx(77.28 - 77.04, abs=0.02)
    assert list(frame.index) == ["sst2", "rte", "cb", "wic", "trec", "avg"]


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
    differences = paired_differences(PRINTED, ["bszo", "mezo"])
    won, lost = (
        conclusion(cell_tests(cells, ["bszo", "mezo"]), differences, "bszo", ["mezo"])
        for cells in (scores(bszo=up, mezo=down), scores(bszo=down, mezo=up))
    )
    assert "BSZO is above MeZO (15 of 15 cells, +33.50 points" in won
    assert "BSZO is not reliably above MeZO (0 of 15 cells, -33.50 points" in lost
    assert won.count(". ") == 0  # one sentence


def test_ranks_equal_scipy_and_demsar() -> None:
    values = np.random.default_rng(3).integers(0, 9, (12, 4)) + np.array([0.0, 0, 2, 6])
    methods = list("abcd")

    def ranked(some: np.ndarray) -> pd.DataFrame:
        columns = dict(zip(methods, some.T.tolist(), strict=False))
        return ranks(scores(**columns), list(columns)).set_index("method").sort_index()

    found = ranked(values)
    assert found["friedman_p"].tolist() == pytest.approx([friedmanchisquare(*values.T).pvalue] * 4)
    average = (5 - rankdata(values, axis=1)).mean(axis=0)
    assert found["average_rank"].tolist() == pytest.approx(average.tolist())
    assert found["critical_difference"].iloc[0] == pytest.approx(
        2.569 * sqrt(4 * 5 / (6 * 12)), abs=1e-3
    )
    assert ranked(values[:9])["critical_difference"].isna().all()
    assert ranked(np.array([[1.0, 2, 3], [3, 2, 1]] * 6))["critical_difference"].isna().all()
    collapsed = ranked(np.array([[1.0, 2, np.nan]] * 10))
    assert collapsed["average_rank"].tolist() == [2.0, 1.0, 3.0]
    assert ranked(np.ones((10, 3)))["friedman_p"].tolist() == [1.0] * 3
