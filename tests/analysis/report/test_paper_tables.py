"""The command that rebuilds the paper's tables, on cells of the real sweeps."""

import pandas as pd
import pytest

from analysis.logs import committed, manifests
from analysis.paper.printed_numbers import load
from analysis.report import paper_tables
from analysis.report.command import main
from analysis.report.markdown import write_runs
from tests.analysis.make_frames import lines, made_frames

STATUS = {
    "mezo": "finished",
    "mezo_adam": "finished",
    "hizoo": "collapsed",
    "lozo": "unfinished",
    "bszo": "duplicated",
}
"""Of the runs of sweep table4 on OPT-1.3B."""


def test_the_committed_runs_of_table_4_fill_it_where_no_runs_are_named(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)  # no path of data is relative to the working directory
    assert main(["paper", "--only", "4"]) == 0
    assert "Table  4  30 of 30 numbers from 15 of 15 runs" in capsys.readouterr().out


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The tables that such runs make."""
    place = tmp_path_factory.mktemp("table4")
    cells = manifests.cells(wanted := lines("table4"))
    manifests.write(wanted, place / committed.CELLS)
    cells = cells[cells["model"] == "opt-1.3b"]
    runs = made_frames(cells, lambda cell: STATUS[cell["optimizer"]]).runs
    runs = runs.set_index("optimizer.name", drop=False)
    runs["provenance.parameters"] = 1_315_758_080
    runs.loc["mezo", ["mem/peak_gib", "time/step_ms_median"]] = 9.0, 110.0
    runs.loc["mezo_adam", ["mem/peak_gib", "mem/state_mib"]] = 19.0, 10_038.4375  # 2 x 4 bytes
    runs.to_parquet(place / "runs.parquet", index=False)
    places = ["--runs", str(place / "runs.parquet"), "--results", str(place)]
    assert main(["paper", *places, "--only", "2", "4", "6", "7", "9"]) == 0
    return place / "tables"


def test_table_4_says_what_each_cell_is(made):
    rows = pd.read_csv(made / "table4.csv").set_index(["model", "quantity", "method"]).sort_index()
    assert rows.loc[("opt-1.3b", "step_ms"), "here"].to_dict() == STATUS
    difference = rows.loc[("opt-1.3b", "step_ms", "mezo"), "difference"]
    assert difference == pytest.approx(110.0 - 109.7)
    measured = rows.loc[("opt-1.3b", "memory_gb", "mezo_adam"), "measured"]
    assert measured == pytest.approx(19 * 2**30 / 1e9)
    page = (made / "table4.md").read_text()
    assert "12 of 15 runs of table4 lack (1 unfinished, 10 missing, 1 duplicated)" in page
    assert "`zo submit sweep=table4` makes them" in page
    assert "on cuda: made" in page
    ratios = page.partition("over MeZO's")[2]
    assert "| MeZO-Adam | paper | 2.16 | 1.23 |" in ratios  # 19.7 / 9.1 and 135.1 / 109.7
    assert "| here | 2.11 |" in ratios  # 19 / 9


def test_conf_is_what_tables_6_to_10_print():
    paper = load()
    sizes = paper_tables.splits(paper).frame
    assert (len(sizes), sizes["difference"].abs().max()) == (16, 0)
    frames = [paper_tables.hyperparameters(number, paper).frame for number in range(7, 11)]
    assert [len(frame) for frame in frames] == [49, 49, 42, 49]
    frame = pd.concat(frames)
    assert (frame["difference"].abs() <= 1e-12).all()
    bszo_b = frame[(frame["method"] == "bszo_b") & (frame["quantity"] == "m")]
    assert set(bszo_b["measured"]) == {3.0}  # k + 1, and k comes from bszo.yaml


def test_runs_of_mixed_values_are_kept(tmp_path):
    runs = pd.DataFrame({"run_id": ["a", "b", "c"], "note": ["x", 2, None], "lr": [1, 0.5, None]})
    kept = pd.read_parquet(write_runs(runs, tmp_path / "new"))
    assert kept["note"].dropna().tolist() == ['"x"', "2"]
    assert kept["lr"].dropna().tolist() == [1, 0.5]
