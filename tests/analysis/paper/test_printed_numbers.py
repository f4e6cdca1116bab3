"""The typed numbers, against facts of the paper that were counted by hand."""

import shutil
from pathlib import Path

import pytest

from analysis.paper.printed_numbers import (
    DIRECTORY,
    TABLES,
    Paper,
    PaperError,
    agrees,
    digits,
    load,
)


@pytest.fixture(scope="module")
def paper() -> Paper:
    return load()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files, to be spoiled."""
    return shutil.copytree(DIRECTORY, tmp_path / "paper")


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


def test_marks(paper: Paper) -> None:
    marked = paper.cells[paper.cells["status"] != "printed"]
    assert marked["status"].value_counts().to_dict() == {"absent": 7, "collapsed": 2}
    collapsed = marked[marked["status"] == "collapsed"]
    assert set(collapsed["method"]) == {"hizoo", "lozo"}
    assert set(collapsed["model"] + collapsed["task"]) == {"mistral-7btrec"}
    assert marked["value"].isna().all()
    assert paper.cells.groupby("table")["bold"].sum().loc[[1, 3, 5, 12]].tolist() == [22, 43, 15, 8]


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


def test_selectors(paper: Paper) -> None:
    assert paper.value("table3 model=opt-13b task=avg method=bszo_b") == 74.51
    assert set(paper.rows("table7-10 quantity=eps")["table"]) == {7, 8, 9, 10}
    assert paper.find(3, model="opt-13b", task="cb", method="bszo") is None
    for wrong, message in (
        ("table3 modle=opt-13b", "does not name cells"),
        ("opt-13b", "does not name cells"),
        ("table3 task=cb", "no such cell"),
    ):
        with pytest.raises(PaperError, match=message):
            paper.rows(wrong)
    with pytest.raises(PaperError, match="names 6 cells, not one"):
        paper.value("table1 task=cb quantity=mean")


def test_every_quoted_number_names_cells(paper: Paper) -> None:
    for claim in paper.prose.to_dict("records"):
        assert (claim["check"] == "none") == (claim["of"] == "")
        for selector in (claim["of"], claim["against"]):
            if selector.startswith("table"):
                assert len(paper.rows(selector))


def test_rounding() -> None:
    assert [digits(text) for text in ("63.50", "79.2", "1000", "1e-3")] == [2, 1, 0, 3]
    assert agrees("79.2", 79.249)
    assert not agrees("79.2", 79.251)
    assert agrees("0.85", 0.845)
    assert agrees("0.84", 0.845)
    assert not agrees("66.07", 100 * 183 / 277)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("table4.csv", "109.7", "109,7", r"table4\.csv, line 3: 5 values|line 3: 4 values"),
        ("table4.csv", "109.7", "fast", r"table4\.csv, line 3: 'fast' is neither a number"),
        ("table4.csv", "quantity", "kind", r"table4\.csv lacks the column quantity"),
        ("table4.csv", "method", "optimizer", r"table4\.csv: unknown column optimizer"),
        (
            "table4.csv",
            "opt-1.3b,mezo,step_ms",
            "opt-1.3b,mezo,memory_gb",
            r"table4\.csv, line 3: this cell is there twice",
        ),
    ],
)
def test_spoiled_files_name_the_place(
    copy: Path, file: str, old: str, new: str, message: str
) -> None:
    path = copy / file
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(PaperError, match=message):
        load(copy)


def test_missing_file(copy: Path) -> None:
    (copy / "table9.csv").unlink()
    with pytest.raises(PaperError, match=r"there is no file .*table9\.csv"):
        load(copy)
