import json
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from analysis.logs.sources import load
from analysis.report import manifest
from analysis.report.command import main
from analysis.select import sweep_cells
from tests.analysis.make_logs import config, write_run


@pytest.fixture
def _few_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sweep of three cells, two of which the miniature's runs fill; asking the suite takes seconds."""
    rows = [
        {
            **dict.fromkeys(sweep_cells.COLUMNS, "x"),
            "sweep": "quickstart",
            "run_id": run_id,
            "lr": 1e-4,
            "seed": 0,
            "steps": 40,
            "variant": {},
        }
        for run_id in ("mezo-4", "mezo-1", "never-made")
    ]
    monkeypatch.setattr(
        sweep_cells, "_ask", lambda sweeps: [r for r in rows if r["sweep"] in sweeps]
    )


def test_files_say_where_every_run_comes_from(logs: Path, tmp_path: Path) -> None:
    write_run(logs, "odd", config("bszo", 1e-3, note="x", patience=None), [], {"run/note": 3})
    write_run(logs, "even", config("bszo", 1e-3, note=2), [], {})
    frames = load([logs], cache_dir=None)
    paths = manifest.write(frames, tmp_path / "results")
    table = pq.read_table(paths[0]).to_pandas().set_index("run_id")
    assert len(table) == 8
    assert table.loc["mezo-4", "best/test_accuracy"] == 0.85
    assert [json.loads(table.loc[i, "note"]) for i in ("odd", "even")] == ["x", 2]
    lines = pd.read_csv(paths[1]).set_index("run_id")
    mezo = lines.loc["mezo-4"]
    assert mezo["versions"].startswith("torch 2.9.0 wandb ")
    assert (mezo["device"], mezo["git_revisions"][:7]) == ("cpu", "1489d1e")
    assert (mezo["source"], mezo["rows"], mezo["torn"]) == (str(logs), 41, False)
    assert lines["config_hash"].str.fullmatch("[0-9a-f]{12}").all()
    before = [path.read_bytes() for path in paths]
    manifest.write(load([logs], cache_dir=None), tmp_path / "results")
    assert [path.read_bytes() for path in paths] == before


@pytest.mark.usefixtures("_few_cells")
def test_command_says_what_lacks(
    quickstart: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache, results = str(tmp_path / "cache"), tmp_path / "results"
    options = ["--runs", str(quickstart), "--cache", cache, "--results", str(results)]
    assert main(["manifest", *options, "--sweep", "quickstart"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 of 3 runs of quickstart lack (1 missing)" in said
    assert "4 runs fill no cell of any sweep: bszo-3, bszo-4, mezo-5, zero" in said
    assert (results / "manifest.csv").exists()
    assert main(["manifest", *options, "--strict"]) == 2
    assert capsys.readouterr().err.startswith("error: 1 of 3 runs of quickstart lack")
    assert main(["manifest", *options, "--sweep", "tabel1"]) == 2
    assert "there is no sweep tabel1: there are " in capsys.readouterr().err
