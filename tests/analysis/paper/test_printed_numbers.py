"""The typed numbers, against facts of the paper that were counted by hand."""

import pytest

from analysis.paper.printed_numbers import load


def test_every_table_has_its_cells() -> None:
    """Rows × columns as the paper prints them; Table 3 with 7 cells that it leaves out on purpose."""
    counted = load().cells.groupby("table").size()
    grids = 5 * 6 + 12 + 2 * 1 + 2 * 2 + 1  # rates, batch size and eps, LOZO's, BSZO's, patience
    tables_1_to_6 = [6 * 11, 5 * 2, 18 * 7, 5 * 6, 3 * 8 + 12, 16]
    assert list(counted) == [*tables_1_to_6, grids, grids, grids - 7, grids, 150, 24]


def test_column_sums_added_by_hand() -> None:
    """Sums that a second reader added from the printed page."""
    paper = load()
    for selector, total in (
        ("table3 method=bszo model=opt-13b", 93.23 + 69.31 + 83 + 56.27 + 61.54 + 79.2 + 73.76),
        ("table4 quantity=step_ms method=hizoo", 188.0 + 540.2 + 877.1),
        ("table1 quantity=std task=cb", 5.56 + 2.71 + 1.96 + 3.87 + 1.79 + 1.49),
        ("table11 task=trec method=bszo_b", 85.8 + 84.6 + 85.2 + 82.2 + 86.2),
        ("table6 quantity=train_size", 5 * 1000 + 300 + 450 + 200),
    ):
        assert paper.rows(selector)["value"].sum() == pytest.approx(total)
