"""The command that rebuilds the paper's tables, on cells of the real sweeps and on runs that W&B wrote."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.paper.printed_numbers import load
from analysis.report import paper_settings
from analysis.report.command import main
from analysis.report.markdown import write_runs
from analysis.select import sweep_cells
from tests.analysis.make_logs import config, cut_copy, history, summary, write_run

ACCURACIES = [0.5, 0.6]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cells of the sweeps are kept, so that they are asked for once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def table4(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """Runs of sweep table4 on OPT-1.3B: two finished, one collapsed, one torn, one that ended twice."""
    cells = sweep_cells.cells(["table4"], cache).set_index(["model", "optimizer"])["run_id"]
    out = tmp_path_factory.mktemp("table4") / "out"

    def write(where: Path, method: str, **changes: Any) -> Path:
        final = summary(2, ACCURACIES, 12, **{"mem/peak_gib": 9.0, "mem/state_mib": 0.0} | changes)
        settings = config(method, 1e-7, model={"name": "opt-1.3b"})
        settings["provenance"] |= {"parameters": 1_315_758_080, "device": "test machine"}
        return write_run(where, cells["opt-1.3b", method], settings, history(2, ACCURACIES), final)

    write(out, "mezo", **{"time/step_ms_median": 110.0})
    write(out, "mezo_adam", **{"mem/peak_gib": 19.0, "mem/state_mib": 10_038.4375})  # 2 x 4 bytes
    write(out, "hizoo", **{"run/status": "collapsed", "run/collapse_step": 3})
    whole = write(out.parent / "whole", "lozo")
    cut_copy(whole, out, whole.stat().st_size // 2)
    write(out, "bszo")
    write(out, "bszo", **{"best/test_accuracy": 0.9})
    return out


@pytest.fixture(scope="module")
def made(cache: Path, table4: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("results")
    places = ["--runs", str(table4), "--cache", str(cache), "--results", str(results)]
    assert main(["paper", *places, "--only", "2", "4", "6", "7", "9"]) == 0
    return results / "tables"


def test_table_4_says_what_each_cell_is(made: Path) -> None:
    rows = pd.read_csv(made / "table4.csv").set_index(["model", "quantity", "method"]).sort_index()
    assert rows.loc[("opt-1.3b", "step_ms"), "here"].to_dict() == {
        "mezo": "finished",
        "mezo_adam": "finished",
        "hizoo": "collapsed",
        "lozo": "unfinished",
        "bszo": "duplicated",
    }
    difference = rows.loc[("opt-1.3b", "step_ms", "mezo"), "difference"]
    assert difference == pytest.approx(110.0 - 109.7)
    measured = rows.loc[("opt-1.3b", "memory_gb", "mezo_adam"), "measured"]
    assert measured == pytest.approx(19 * 2**30 / 1e9)
    page = (made / "table4.md").read_text()
    assert "12 of 15 runs of table4 lack (1 unfinished, 10 missing, 1 duplicated)" in page
    assert "`python -m launch.submit sweep=table4` makes them" in page
    assert "on test machine" in page
    ratios = page.partition("over MeZO's")[2]
    assert "| MeZO-Adam | paper | 2.16 | 1.23 |" in ratios  # 19.7 / 9.1 and 135.1 / 109.7
    assert "| here | 2.11 |" in ratios  # 19 / 9
    statuses = pd.read_csv(made / "table4.runs.csv")["status"]
    assert set(statuses) == {"finished", "collapsed", "unfinished", "missing", "duplicated"}


def test_conf_is_what_tables_7_to_10_print() -> None:
    paper = load()
    frames = [paper_settings.hyperparameters(number, paper).frame for number in range(7, 11)]
    assert [len(frame) for frame in frames] == [49, 49, 42, 49]
    frame = pd.concat(frames)
    assert (frame["difference"].abs() <= 1e-12).all()
    bszo_b = frame[(frame["method"] == "bszo_b") & (frame["quantity"] == "m")]
    assert set(bszo_b["measured"]) == {3.0}  # k + 1, and k comes from bszo.yaml


def test_sizes_prefer_what_runs_logged() -> None:
    runs = pd.DataFrame(
        {"task.name": ["cb", "cb"], "best/val_n": [50.0, 49.0], "best/test_n": [56.0, None]}
    )
    frame = paper_settings.splits(load(), runs).frame.set_index(["task", "quantity"])
    assert frame.loc[("cb", "validation_size"), "runs"] == 50
    assert frame.loc[("cb", "test_size"), "measured"] == 56
    assert frame.loc[("cb", "train_size"), "run_count"] == 0
    assert frame.loc[("cb", "train_size"), "measured"] == 200
    wrong = paper_settings.splits(load(), runs.assign(**{"best/val_n": 40.0})).frame
    assert wrong[wrong["difference"] < 0]["task"].tolist() == ["cb"]


def test_runs_of_mixed_values_are_kept(tmp_path: Path) -> None:
    runs = pd.DataFrame({"run_id": ["a", "b", "c"], "note": ["x", 2, None], "lr": [1, 0.5, None]})
    kept = pd.read_parquet(write_runs(runs, tmp_path))
    assert kept["note"].dropna().tolist() == ['"x"', "2"]
    assert kept["lr"].dropna().tolist() == [1, 0.5]
