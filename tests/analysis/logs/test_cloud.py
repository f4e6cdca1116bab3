"""The real wandb.Api against a server on this machine; each reading is a process of its own, as W&B's settings are."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.logs.run_file import LogError
from tests.analysis.logs.fake_wandb import Cloud, CloudRun, serve
from tests.analysis.make_logs import config, history, summary

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[3]
GOOD = [0.5, 0.6, 0.75, 0.7, 0.75]
SCRIPT = """
import pickle, sys
import pandas as pd
from analysis.logs.sources import load
from analysis.logs.run_file import LogError
import analysis.logs.cloud
sources, options, listed, out = pickle.loads(sys.stdin.buffer.read())
analysis.logs.cloud.LIST_SECONDS = listed
analysis.logs.cloud.RUNS_PER_PAGE = 2
analysis.logs.cloud.STEPS_PER_PAGE = 7
try:
    frames = load(sources, **options)
    histories = [frames.history.one(run_id) for run_id in frames.history.run_ids]
    answer = frames.runs, pd.concat(histories, ignore_index=True)
except LogError as error:
    answer = error
pickle.dump(answer, open(out, "wb"))
"""


@dataclass
class Read:
    runs: pd.DataFrame
    history: pd.DataFrame


def rows(accuracies: list[float], seed: int, until: int = 10**9) -> list[dict[str, Any]]:
    """History rows as the server has them: `_step` among the keys, no gaps filled."""
    made = [
        {"_step": row.pop("step"), "_timestamp": 1.0, **row} for row in history(2, accuracies, seed)
    ]
    return [row for row in made if row["_step"] <= until]


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    runs = [
        CloudRun("mezo-4", config("mezo", 1e-4), summary(2, GOOD, 17), live=rows(GOOD, 1)),
        CloudRun(
            "mezo-1",
            config("mezo", 0.1),
            {"run/status": "collapsed", "run/collapse_step": 7, "train/loss": "NaN"},
            live=[*rows([0.5, 0.4], 3, until=6), {"_step": 7, "train/loss": "NaN"}],
        ),
        CloudRun(
            "bszo-4",
            config("bszo", 1e-4),
            summary(2, GOOD, 16),
            exported=rows(GOOD, 5, until=25),
            live=[row for row in rows(GOOD, 5) if row["_step"] > 22],
        ),
    ]
    with serve(Cloud(runs)) as served:
        yield served


def ask(
    cloud: Cloud,
    tmp_path: Path,
    *sources: str,
    listed: float = 0,
    key: str = "k" * 40,
    **options: Any,
) -> Read:
    """What `load` answers; raises what it raises."""
    out = tmp_path / "answer.pickle"
    options.setdefault("cache_dir", tmp_path / "cache")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    environment |= {
        "WANDB_BASE_URL": cloud.url,
        "WANDB_SILENT": "true",
        "WANDB_DIR": str(tmp_path),
        "WANDB_CACHE_DIR": str(tmp_path / "wandb-cache"),
        "HOME": str(tmp_path),  # no key of the person who tests
        "PYTHONPATH": str(ROOT),
        **({"WANDB_API_KEY": key} if key else {}),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=pickle.dumps((sources or ("entity/project",), options, listed, out)),
        capture_output=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    answer = pickle.loads(out.read_bytes())
    if isinstance(answer, LogError):
        raise answer
    return Read(*answer)


def test_complete_history_of_every_run(cloud: Cloud, tmp_path: Path) -> None:
    read = ask(cloud, tmp_path)
    runs = read.runs.set_index("run_id")
    assert list(runs.index) == ["bszo-4", "mezo-1", "mezo-4"]
    assert cloud.asked["Runs"] == 2  # pages of two
    mezo = runs.loc["mezo-4"]
    assert (mezo["status"], mezo["group"], mezo["exit_code"]) == ("finished", "quickstart", 0)
    assert (mezo["optimizer.name"], mezo["lr"], mezo["source"]) == ("mezo", 1e-4, "entity/project")
    assert mezo["task.label_words"] == '["terrible", "great"]'
    assert mezo["provenance.versions.torch"] == "2.9.0"
    assert mezo["started"] == "2026-01-31T12:00:00"
    assert (mezo["rows"], mezo["last_step"], mezo["forwards_to_best"]) == (41, 40, 40)
    logged = read.history.set_index(["run_id", "step"])
    for name, seed in (("mezo-4", 1), ("bszo-4", 5)):  # live alone; exported with a live tail
        wanted = pd.DataFrame(rows(GOOD, seed)).set_index("_step").drop(columns="_timestamp")
        seen = logged.loc[name, list(wanted.columns)]
        pd.testing.assert_frame_equal(seen, wanted, check_names=False, check_exact=True)
    assert not [column for column in logged.columns if column.startswith("_")]


def test_only_what_has_changed_is_read_again(cloud: Cloud, tmp_path: Path) -> None:
    first = ask(cloud, tmp_path)
    assert sorted(cloud.scanned) == ["bszo-4", "mezo-1", "mezo-4"]
    young = ask(cloud, tmp_path, listed=3600)
    assert cloud.asked["Runs"] == 2  # the list is young: W&B is not asked at all
    cloud.runs[0].state, cloud.runs[0].heartbeat = "running", "2026-01-31T13:00:00Z"
    cloud.runs[0].live.append({"_step": 41, "train/loss": 0.125})
    third = ask(cloud, tmp_path)
    assert sorted(cloud.scanned) == ["bszo-4", "mezo-1", "mezo-4", "mezo-4"]
    pd.testing.assert_frame_equal(first.history, young.history)
    pd.testing.assert_frame_equal(first.runs, young.runs)
    assert third.history.set_index(["run_id", "step"]).loc[("mezo-4", 41), "train/loss"] == 0.125
    ask(cloud, tmp_path, refresh="always", listed=3600)
    assert len(cloud.scanned) == 7


def test_what_was_interrupted_goes_on(cloud: Cloud, tmp_path: Path) -> None:
    cloud.refuse_scan_of = "mezo-1"
    with pytest.raises(LogError, match=r"^the history of entity/project/mezo-1 cannot be read:"):
        ask(cloud, tmp_path)
    kept = len(list((tmp_path / "cache").rglob("*.parquet")))
    cloud.refuse_scan_of, cloud.scanned = None, []
    ask(cloud, tmp_path)
    assert "mezo-1" in cloud.scanned
    assert len(cloud.scanned) == 3 - kept
    assert kept >= 1


def test_both_mixed(cloud: Cloud, logs: Path, tmp_path: Path) -> None:
    """mezo-4 lies here whole, bszo-4 torn in the middle; W&B has both, and mezo-1 is here and there."""
    (path,) = logs.glob("bszo-4/wandb/offline-run-*/run-bszo-4.wandb")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    cloud.runs[0].live = [{**row, "train/loss": 99.0} for row in rows(GOOD, 1)]
    cloud.runs[0].live.append({"_step": 50, "train/loss": 98.0})
    read = ask(cloud, tmp_path, str(logs), "wandb:entity/project")
    runs = read.runs.set_index("run_id")
    assert list(runs.index) == ["bszo-3", "bszo-4", "mezo-1", "mezo-4", "mezo-5", "zero"]
    assert runs.loc["mezo-4", "source"] == f"{logs} entity/project"
    assert runs.loc["mezo-4", "fragments"] == 2
    mezo = read.history[read.history["run_id"] == "mezo-4"].set_index("step")
    assert list(mezo.index) == [*range(41), 50]
    assert mezo.loc[50, "train/loss"] == 98.0
    assert mezo.loc[:40, "train/loss"].max() < 2  # the run file's, which ended the run
    bszo = read.history[read.history["run_id"] == "bszo-4"].set_index("step")
    assert list(bszo.index) == list(range(41))
    assert (runs.loc["bszo-4", "status"], runs.loc["bszo-4", "torn"]) == ("finished", True)
    assert runs.loc["bszo-4", "duplicates"] == 0


def test_errors_are_one_sentence(cloud: Cloud, tmp_path: Path) -> None:
    for sources, options, says in (
        (["entity/elsewhere"], {}, "the runs of entity/elsewhere cannot be listed: Could not find"),
        ([], {"key": ""}, "W&B needs a key: `wandb login`, or WANDB_API_KEY in the environment"),
        ([], {"refresh": "sometimes"}, "refresh=sometimes: must be one of auto, always, never"),
    ):
        with pytest.raises(LogError, match=f"^{says}[^\n]*$"):
            ask(cloud, tmp_path, *sources, **options)
