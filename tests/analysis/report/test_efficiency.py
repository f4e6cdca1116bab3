"""Time and memory over MeZO's: on the cells of the real sweeps, with runs that W&B wrote."""

import csv
from pathlib import Path
from typing import Any

import pytest

from analysis.report.command import main
from analysis.report.efficiency import SWEEPS
from analysis.select import sweep_cells
from tests.analysis.make_logs import config, history, summary, write_run

STEP_MS = {
    ("table4", "mezo"): 100.0,
    ("table4", "bszo"): 90.0,
    ("table4_fast", "mezo"): 40.0,
    ("table4_fast", "bszo"): 60.0,
    ("table4_factors", "lozo"): 20.0,
}


def rows_of(results: Path) -> dict[tuple[str, str], dict[str, Any]]:
    with (results / "table4" / "ratios.csv").open() as file:
        return {(row["sweep"], row["method"]): row for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("efficiency")
    cells = sweep_cells.cells(list(SWEEPS), root / "cache")
    ids = cells.set_index(["sweep", "model", "optimizer"])["run_id"]

    def write(sweep: str, method: str, device: str = "a GPU", **told: Any) -> None:
        settings = config(method, 1e-7, model={"name": "opt-1.3b"})
        settings["provenance"] |= {"device": device}
        final = summary(2, [0.5, 0.5], 10, **told)
        write_run(
            root / "out",
            ids[sweep, "opt-1.3b", method],
            settings,
            history(2, [0.5, 0.5]),
            final,
        )

    for (sweep, method), ms in STEP_MS.items():
        gib = 9.0 if method == "mezo" else 9.9
        write(sweep, method, **{"time/step_ms_median": ms, "mem/peak_gib": gib})
    write("table4", "hizoo", "another GPU", **{"time/step_ms_median": 50.0, "mem/peak_gib": 9.0})
    write("table4", "mezo_adam", **{"run/status": "collapsed", "time/step_ms_median": 1.0})
    places = ["--runs", str(root / "out"), "--results", str(root), "--cache", str(root / "c")]
    assert main(["efficiency", *places]) == 0
    return root


def test_ratios_are_over_mezo_of_the_same_sweep(results: Path) -> None:
    rows = rows_of(results)
    assert float(rows["table4", "bszo"]["time_ratio"]) == pytest.approx(0.9)
    assert float(rows["table4", "bszo"]["memory_ratio"]) == pytest.approx(1.1)
    assert float(rows["table4_fast", "bszo"]["time_ratio"]) == pytest.approx(1.5)
    assert float(rows["table4_factors", "lozo"]["time_ratio"]) == pytest.approx(0.5)  # over fast's
    assert float(rows["table4", "bszo"]["paper_time_ratio"]) == pytest.approx(97.0 / 109.7)
    assert float(rows["table4_fast", "bszo"]["speedup"]) == pytest.approx(90 / 60)


def test_runs_of_different_machines_are_not_divided(results: Path) -> None:
    assert rows_of(results)["table4", "hizoo"]["time_ratio"] == ""


def test_a_collapsed_run_has_no_time(results: Path) -> None:
    assert rows_of(results)["table4", "mezo_adam"]["step_ms"] == ""
    text = (results / "table4" / "efficiency.md").read_text()
    line = next(row for row in text.splitlines() if row.startswith("| MeZO-Adam"))
    assert line.split("|")[3].strip() == r"\*"


def test_without_a_run_the_page_says_what_makes_them(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    arguments = ["--runs", str(tmp_path / "out"), "--cache", str(tmp_path / "c")]
    assert main(["efficiency", *arguments, "--results", str(tmp_path)]) == 0
    assert "make measured" in (tmp_path / "table4" / "efficiency.md").read_text()
