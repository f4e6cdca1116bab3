"""Kept measurements: what they hold, and that they outlive a change of run ids."""

import json
from pathlib import Path

import pandas as pd
import pytest

from analysis.logs import committed
from analysis.logs.run_file import LogError
from analysis.logs.sources import load
from analysis.report.command import main
from analysis.select.cell_runs import cell_key, fill
from analysis.stats.contrasts import verdicts

MEASURED = Path(__file__).parents[3] / "results" / "measured"


def test_a_cell_is_filled_under_a_new_id(quickstart: Path, tmp_path: Path) -> None:
    frames = load([quickstart], cache_dir=None)
    run_id = frames.runs.loc[frames.runs["status"] == "finished", "run_id"].iloc[-1]
    names = dict.fromkeys(("sweep", "model", "task", "optimizer", "precision"), "a")
    cell = names | {"run_id": "new", "variant": "{}", "seed": 0, "lr": 1e-3, "steps": 3}
    runs = frames.runs.assign(cells="[]")
    runs.loc[runs["run_id"] == run_id, "cells"] = json.dumps([cell_key(cell)])
    runs.to_parquet(tmp_path / "runs.parquet")
    rows = frames.history.one(run_id, ["eval/val_accuracy"]).dropna()
    rows.to_parquet(tmp_path / committed.EVALUATED)
    again = load([tmp_path / "runs.parquet"], cache_dir=None)
    kept = again.history.one(run_id, ["eval/val_accuracy"])
    assert kept["eval/val_accuracy"].tolist() == rows["eval/val_accuracy"].tolist()
    (filled,) = fill(pd.DataFrame([cell]), again.runs).to_dict("records")
    assert (filled["run_id"], filled["status"]) == (run_id, "finished")
    (missing,) = fill(pd.DataFrame([cell | {"lr": 1e-4}]), again.runs).to_dict("records")
    assert (missing["run_id"], missing["status"]) == ("new", "missing")


def test_kept_runs_fill_a_table(quickstart: Path, tmp_path: Path) -> None:
    """Also though each says which cells it filled."""
    runs = load([quickstart], cache_dir=None).runs
    path = tmp_path / "runs.parquet"
    runs.assign(cells=[json.dumps([i]) for i in range(len(runs))]).to_parquet(path)
    asked = ["tables", "quickstart", "--runs", str(path), "--results", str(tmp_path)]
    assert main(asked) == 0
    assert "| MeZO | 0.0001 |" in (tmp_path / "quickstart" / "table.md").read_text()


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("no parquet")
    with pytest.raises(LogError, match="not a frame of runs"):
        load([tmp_path / "a.parquet"])


def test_committed_verdicts_follow_the_rule() -> None:
    """Holm over the claimed rows of a claim, and the interval: recomputed from the committed p-values."""
    claims = pd.read_csv(MEASURED / "study_tiny" / "claims.csv")
    again = verdicts(claims.drop(columns="p_holm"), claims["p_holm"].notna())
    assert again["p_holm"].tolist() == pytest.approx(claims["p_holm"].tolist(), nan_ok=True)
    claimed = claims["p_holm"].notna()
    assert again.loc[claimed, "verdict"].tolist() == claims.loc[claimed, "verdict"].tolist()
