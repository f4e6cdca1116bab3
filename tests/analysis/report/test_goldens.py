"""The tables of committed runs, made again by the commands, are the committed ones, byte for byte."""

import re
from pathlib import Path

import pytest
import vl_convert

from analysis.logs import committed
from analysis.report import comparison
from analysis.report.command import main

RESULTS = Path(__file__).parents[3] / "results"
COMPARED = sorted(path.parent for path in RESULTS.glob("measured/*/comparison.csv"))
SETTINGS = sorted(RESULTS.glob("settings/*.csv"))
LATER = {"compare_smollm2_all": "adam"}
"""A line of which one more rate was run after its setting had been chosen, see conf/sweep."""

OF_METHODS = Path(__file__).with_name("goldens")  # where no folder of results has the table
TABLES = {
    **{path / f"comparison.{kind}": path.name for path in COMPARED for kind in ("csv", "md")},
    **{path: path.parent.name for path in sorted(OF_METHODS.glob("*/*"))},
    RESULTS / "measured" / "table4" / "table4.csv": "tables",
}

pytestmark = pytest.mark.process  # several seconds


@pytest.fixture
def undrawn(monkeypatch, tmp_path):
    """No pictures: their numbers are in the csv files."""
    for name in ("vegalite_to_svg", "javascript_bundle"):
        monkeypatch.setattr(vl_convert, name, lambda *_, **__: "")
    for name in ("svg_to_png", "svg_to_pdf"):
        monkeypatch.setattr(vl_convert, name, lambda *_, **__: b"")
    monkeypatch.chdir(tmp_path)  # no runs in out/


def test_the_tables_of_committed_runs_are_the_committed_tables(undrawn, tmp_path):
    sweeps = dict.fromkeys(folder for folder in TABLES.values() if folder != "tables")
    assert main(["tables", *sweeps, "--results", str(tmp_path)]) == 0
    differ = [
        str(path.relative_to(RESULTS.parent))
        for path, folder in TABLES.items()
        if (tmp_path / folder / path.name).read_bytes() != path.read_bytes()
    ]
    assert (len(TABLES), differ) == (21, [])


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.stem)
def test_the_settings_that_committed_tuning_runs_choose_are_the_committed_ones(
    path, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparison, "SETTINGS", tmp_path)
    study = path.stem.removesuffix("_tune_best")
    known = {
        line["sweep"] for line in committed.lines(RESULTS / "measured" / study / "runs.parquet")
    }
    tuning = [f"{study}_tune", f"{study}_tune_best"][: 1 if path.stem != study else 2]
    best = re.search(r"the (\d+) of lowest", path.read_text())[1]
    assert main(["choose", path.stem, "--of", *sorted(known & {*tuning}), "--best", best]) == 0
    skipped = ("#", f"{LATER.get(path.stem, '#')},")
    rows, golden = (
        [line for line in text.read_text().splitlines() if not line.startswith(skipped)]
        for text in (tmp_path / path.name, path)
    )
    assert rows == golden
