"""The dashboards' specification, held against what real runs log."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.logs.sources import load

ROOT = Path(__file__).parents[3]
reason = "the extra `dashboards` is not installed"
dashboard = pytest.importorskip("analysis.report.dashboard", reason=reason)


@pytest.mark.process
def test_every_key_is_logged_by_real_runs(tmp_path: Path) -> None:
    asked = ["-m", "optimizer=bszo,hizoo", "lr=1e-4,1e30", "steps=2", "eval_every=1", "threads=1"]
    command = [sys.executable, "train.py", *asked, f"out={tmp_path}"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    frames = load([tmp_path], cache_dir=None)
    assert len(frames.runs) == 4, done.stderr[-2000:]
    history = {key for one in frames.runs["run_id"] for key in frames.history.one(one)}
    assert set(dashboard.HISTORY_KEYS) <= history
    assert {*dashboard.SUMMARY_KEYS, *dashboard.CONFIG_KEYS} <= set(frames.runs.columns)
