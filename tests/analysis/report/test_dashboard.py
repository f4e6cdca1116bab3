"""The dashboards' specification, held against what real runs log."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.logs.sources import load

ROOT = Path(__file__).parents[3]
dashboard = pytest.importorskip("analysis.report.dashboard", reason="needs the extra `dashboards`")


@pytest.mark.process
def test_every_key_is_logged_by_real_runs(tmp_path):
    asked = ["-m", "optimizer=bszo,hizoo", "lr=1e-4,1e30", "steps=2", "eval_every=1", "threads=1"]
    command = [sys.executable, "train.py", *asked, f"out={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    frames = load([tmp_path], tmp_path / "cache")
    assert len(frames.runs) == 5, done.stderr[-2000:]
    logged = {key for one in frames.runs["run_id"] for key in frames.history.one(one)}
    written = dashboard.make("me", "zo", tmp_path / "dashboard")
    text = "".join(path.read_text() for path in written)
    keys = set(re.findall(r"\b(?:train|eval|best|optim|run|time|mem)/\w+", text))
    assert len(keys) == 19
    assert keys <= logged | set(frames.runs.columns)
    assert {dashboard.METHOD, dashboard.RATE} <= set(frames.runs.columns)
