"""Rank tests of methods, on numbers small enough for a hand; test_audit.py has those of the paper's numbers."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.stats import wilcoxon

from tools.audit_paper.method_comparison import ranks, wilcoxon_exact


@pytest.mark.parametrize(
    "accuracies",
    [
        [[1.0, 9.0, 5.0]] * 9,  # fewer than 10 cells
        [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]] * 6,  # Friedman's test does not reject
        [[1.0, 1.0, 1.0]] * 10,
    ],
)
def test_ranks_without_a_critical_difference(accuracies: list[list[float]]) -> None:
    cells = pd.DataFrame(accuracies, columns=list("abc")).rename_axis("task").reset_index()
    cells = cells.melt("task", var_name="method", value_name="accuracy").assign(model="m")
    assert ranks(cells, list("abc"))["critical_difference"].isna().all()


def test_wilcoxon_equals_scipy_and_all_signs() -> None:
    rng = np.random.default_rng(2)
    for n in (5, 12, 23):
        differences = [float(d) for d in rng.normal(0.4, 1, n)]
        expected = wilcoxon(differences, method="exact")
        assert wilcoxon_exact(differences) == pytest.approx(expected.pvalue)
    tied = [1.0, 1.0, -1.0, 2.0, 2.0, -3.0, 4.0, 0.0]  # ranks 2 2 2 4.5 4.5 6 7
    ranks = np.array([2, 2, 2, 4.5, 4.5, 6, 7])
    smaller = [ranks[list(signs)].sum() <= 2 + 6 for signs in product((False, True), repeat=7)]
    assert wilcoxon_exact(tied) == pytest.approx(2 * np.mean(smaller))
    assert wilcoxon_exact([0.0, 0.0]) == 1.0
    inf = float("inf")  # collapses: the highest ranks, which they share
    assert wilcoxon_exact([1.0, -2.0, 3.0, inf, inf]) == wilcoxon_exact([1.0, -2.0, 3.0, 9, 9])
    with pytest.raises(ValueError, match="not a number"):
        wilcoxon_exact([1.0, float("nan")])
