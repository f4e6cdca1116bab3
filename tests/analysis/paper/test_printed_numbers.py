"""The typed numbers, against facts of the paper that were counted by hand."""

import pytest

from analysis.paper.printed_numbers import (
    TABLES,
    Paper,
    load,
)


@pytest.fixture(scope="module")
def paper() -> Paper:
    return load()


def test_every_table_has_its_cells(paper: Paper) -> None:
    """Rows × columns as the paper prints them; Table 3 with 7 cells that it leaves out on purpose."""
    counted = paper.cells.groupby("table").size().to_dict()
    grids = 5 * 6 + 12 + 2 * 1 + 2 * 2 + 1  # rates, batch size and eps, LOZO's, BSZO's, patience
    assert counted == {
        1: 6 * 11,
        2: 5 * 2,
        3: 18 * 7,
        4: 5 * 6,
        5: 3 * 8 + 12,
        6: 16,
        7: grids,
        8: grids,
        9: grids - 7,
        10: grids,
        11: 150,
        12: 24,
    }
    assert set(counted) == set(TABLES)


def test_column_sums_added_by_hand(paper: Paper) -> None:
    """Sums that a second reader added from the printed page."""
    for selector, total in (
        ("table3 method=bszo model=opt-13b", 93.23 + 69.31 + 83 + 56.27 + 61.54 + 79.2 + 73.76),
        ("table4 quantity=step_ms method=hizoo", 188.0 + 540.2 + 877.1),
        ("table1 quantity=std task=cb", 5.56 + 2.71 + 1.96 + 3.87 + 1.79 + 1.49),
        ("table11 task=trec method=bszo_b", 85.8 + 84.6 + 85.2 + 82.2 + 86.2),
        ("table6 quantity=train_size", 5 * 1000 + 300 + 450 + 200),
    ):
        assert paper.rows(selector)["value"].sum() == pytest.approx(total)
