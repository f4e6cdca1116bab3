"""The dashboards' specification, held against what real runs log."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.logs.frames import read_frames
from analysis.paper.names import UNTRAINED
from analysis.report import dashboard
from analysis.report.command import main
from analysis.report.dashboard import CONFIG_KEYS, HISTORY_KEYS, SUMMARY_KEYS, specification
from analysis.report.style import LOOKS

ROOT = Path(__file__).parents[3]
pytest.importorskip("wandb_workspaces", reason="the extra `dashboards` is not installed")


@pytest.fixture(scope="module")
def spec() -> dict[str, dict]:
    return {name: json.loads(text) for name, text in specification("me", "zo").items()}


def panels(node: object) -> list[dict]:
    """Every panel of a specification, however deep."""
    if isinstance(node, dict):
        own = [node] if "viewType" in node and "config" in node else []
        return own + [panel for inner in node.values() for panel in panels(inner)]
    if isinstance(node, list):
        return [panel for inner in node for panel in panels(inner)]
    return []


def metrics(found: list[dict]) -> set[str]:
    return {metric for panel in found for metric in panel["config"].get("metrics", [])}


@pytest.mark.process
def test_every_key_is_logged_by_real_runs(tmp_path: Path) -> None:
    command = [
        *(
            sys.executable,
            "train.py",
            "-m",
            "optimizer=bszo,hizoo",
            "lr=1e-4,1e30",
            "steps=2",
            "eval_every=1",
        ),
        *("threads=1", f"out={tmp_path}"),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    frames = read_frames([tmp_path])
    assert len(frames.runs) == 4, done.stderr[-2000:]
    history = set(frames.history.of(frames.runs["run_id"]).columns)
    assert set(HISTORY_KEYS) <= history
    assert set(SUMMARY_KEYS) <= set(frames.runs.columns)
    assert set(CONFIG_KEYS) <= set(frames.runs.columns)


def test_panels_use_the_declared_keys_alone(spec: dict[str, dict]) -> None:
    known = {*HISTORY_KEYS, *SUMMARY_KEYS}
    for content in spec.values():
        found = panels(content)
        assert len(found) > 15
        assert metrics(found) <= known, metrics(found) - known


def test_workspace_groups_by_method_and_rate(spec: dict[str, dict]) -> None:
    workspace = spec["workspace"]
    assert (workspace["entity"], workspace["project"]) == ("me", "zo")
    sections = [s["name"] for s in workspace["spec"]["section"]["panelBankConfig"]["sections"]]
    assert sections[:4] == [
        "Loss and accuracy",
        "BSZO's own signals",
        "Signals of other methods",
        "Efficiency",
    ]
    text = json.dumps(workspace)
    assert "optimizer.value.name" in text
    assert "lr.value" in text


def test_report_has_every_method_by_rate(spec: dict[str, dict]) -> None:
    text = json.dumps(spec["report"])
    for method, style in LOOKS.items():
        assert (json.dumps(style.label) in text) == (method not in UNTRAINED)
        assert (json.dumps(method) in text) == (method not in UNTRAINED)


def test_specification_is_the_same_every_time_and_reloads() -> None:
    first, second = specification("me", "zo"), specification("me", "zo")
    assert first == second
    made = dashboard.workspace("me", "zo")
    again = type(made)._from_model(made._to_model())
    assert [s.name for s in again.sections] == [s.name for s in made.sections]
    assert [len(s.panels) for s in again.sections] == [len(s.panels) for s in made.sections]


def test_dry_run_writes_and_sends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "dashboard",
                "--entity",
                "me",
                "--project",
                "zo",
                "--dry-run",
                "--results",
                str(tmp_path),
            ]
        )
        == 0
    )
    assert sorted(path.name for path in (tmp_path / "dashboard").iterdir()) == [
        "report.json",
        "workspace.json",
    ]
    assert str(tmp_path / "dashboard" / "workspace.json") in capsys.readouterr().out


def test_without_a_login_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert main(["dashboard", "--entity", "me", "--project", "zo"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: W&B did not take the dashboards: ")
    assert "login" in error


def test_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dashboard, "ws", None)
    assert main(["dashboard", "--entity", "me", "--project", "zo", "--dry-run"]) == 2
    assert "pip install -e '.[dashboards]'" in capsys.readouterr().err
