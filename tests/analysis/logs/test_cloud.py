"""The real wandb.Api, with its core process, against a server on this machine.

The server answers what the client of wandb 0.31 asks of W&B's. Each reading is a process of its own, as W&B's settings
are.
"""

import json
import os
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.logs import cloud as read_cloud
from analysis.logs.run_file import LogError
from analysis.logs.sources import load
from tests.analysis.make_logs import config, history, summary

pytestmark = pytest.mark.process
GOOD = [0.5, 0.6, 0.75, 0.7, 0.75]
NULL = ("sweepName", "jobType", "commit", "readOnly", "description", "notes", "systemMetrics")
"""What the client asks of a run and this suite does not read."""


@dataclass
class CloudRun:
    """A run as the server has it; `exported` rows are in a parquet file, `live` ones not yet."""

    name: str
    config: dict[str, Any]
    summary: dict[str, Any]
    live: list[dict[str, Any]]
    exported: list[dict[str, Any]] = field(default_factory=list)
    state: str = "finished"
    heartbeat: str = "2026-01-31T12:10:00Z"

    def node(self) -> dict[str, Any]:
        return {
            **dict.fromkeys(NULL),
            "id": f"id-{self.name}",
            "projectId": "1",
            "tags": [],
            "user": {"name": "someone", "username": "someone"},
            "name": self.name,
            "displayName": self.name,
            "state": self.state,
            "config": json.dumps({k: {"value": v, "desc": None} for k, v in self.config.items()}),
            "group": "quickstart",
            "createdAt": "2026-01-31T12:00:00Z",
            "heartbeatAt": self.heartbeat,
            "summaryMetrics": json.dumps(self.summary),
            "historyLineCount": len(self.exported) + len(self.live),
            "historyKeys": {"lastStep": self.live[-1]["_step"], "sets": [], "keys": {}},
        }


@dataclass
class Cloud:
    """The project entity/project, what was asked of it, and the run whose history it refuses."""

    runs: list[CloudRun]
    url: str = ""
    pages: int = 0
    scanned: list[str] = field(default_factory=list)
    refuse_scan_of: str | None = None

    def answer(self, name: str, variables: dict[str, Any]) -> dict[str, Any]:
        """What a query of this name answers."""
        if name in ("Viewer", "GetDefaultEntity"):
            who = {"id": "VXNlcjox", "username": "someone", "entity": "entity"}
            return {"viewer": {**who, "flags": "{}", "teams": {"edges": []}}}
        if variables.get("project") != "project":
            return {"project": None}
        return {"project": self._page(variables) if name == "Runs" else self._run(name, variables)}

    def _page(self, variables: dict[str, Any]) -> dict[str, Any]:
        self.pages += 1
        start = int(variables.get("cursor") or 0)
        end = min(start + variables["perPage"], len(self.runs))
        edges = [{"node": self.runs[i].node(), "cursor": str(i + 1)} for i in range(start, end)]
        page = {"endCursor": str(end), "hasNextPage": end < len(self.runs)}
        counts = {"internalId": "1", "runCount": len(self.runs), "readOnly": False}
        return {**counts, "runs": {"edges": edges, "pageInfo": page}}

    def _run(self, name: str, variables: dict[str, Any]) -> dict[str, Any]:
        asked = {variables.get(key) for key in ("name", "run", "runName")}
        (run,) = [run for run in self.runs if run.name in asked]
        if name == "HistoryPage":
            low, high = variables["minStep"], variables["maxStep"]
            rows = [json.dumps(row) for row in run.live if low <= row["_step"] < high]
            return {"run": {"history": rows}}
        if name == "RunParquetHistory":
            if run.name == self.refuse_scan_of:
                raise PermissionError("no scan today")
            self.scanned.append(run.name)
            steps = [{"_step": row["_step"]} for row in run.live]  # where the live rows begin
            urls = [f"{self.url}/{run.name}"] if run.exported else []
            return {"run": {"parquetHistory": {"parquetUrls": urls, "liveData": steps}}}
        assert name in ("Run", "RunHistoryKeys"), name
        return {"run": run.node()}


def handler(cloud: Cloud) -> type[BaseHTTPRequestHandler]:
    """Speaks GraphQL, and gives away parquet files."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            (run,) = [run for run in cloud.runs if run.name == self.path.strip("/")]
            self._send(pd.DataFrame(run.exported).to_parquet())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, answer = 200, {}
            if self.path == "/graphql":  # not the client's own statistics
                asked = json.loads(body)
                (name,) = re.findall(r"query\s+(\w+)", asked["query"])
                try:
                    answer = {"data": cloud.answer(name, asked.get("variables", {}))}
                except PermissionError as error:
                    status, answer = 400, {"errors": [{"message": str(error)}]}
            self._send(json.dumps(answer).encode(), status)

        def _send(self, body: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def rows(accuracies: list[float], seed: int, until: int = 10**9) -> list[dict[str, Any]]:
    """History rows as the server has them: `_step` among the keys, no gaps filled."""
    kept = [row for row in history(2, accuracies, seed) if row["step"] <= until]
    return [{"_step": row.pop("step"), "_timestamp": 1.0, **row} for row in kept]


@pytest.fixture
def cloud(monkeypatch, tmp_path):
    """A project of three runs; W&B's client knows nothing but its server and a key."""
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
    cloud = Cloud(runs)
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(cloud)) as server:
        cloud.url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("WANDB_BASE_URL", cloud.url)
        monkeypatch.setenv("WANDB_SILENT", "true")
        monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield cloud
        server.shutdown()


def ask(tmp_path: Path, *sources: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The runs and the history that `load` answers, in a process of its own; raises what it raises."""
    with get_context("spawn").Pool(1) as pool:
        asked = sources or ("entity/project",)
        return pool.apply_async(_load, (asked, tmp_path / "cache")).get(120)


def _load(sources: list[str], cache: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    read_cloud.RUNS_PER_PAGE, read_cloud.STEPS_PER_PAGE = 2, 7
    frames = load(sources, cache)
    histories = [frames.history.one(run_id) for run_id in frames.history.rows]
    return frames.runs, pd.concat(histories, ignore_index=True)


def test_complete_history_of_every_run(cloud, tmp_path):
    runs, logged = ask(tmp_path)
    runs = runs.set_index("run_id")
    assert list(runs.index) == ["bszo-4", "mezo-1", "mezo-4"]
    assert cloud.pages == 2  # of two runs
    mezo = runs.loc["mezo-4"]
    assert (mezo["status"], mezo["group"], mezo["exit_code"]) == ("finished", "quickstart", 0)
    assert (mezo["optimizer.name"], mezo["lr"], mezo["source"]) == ("mezo", 1e-4, "entity/project")
    assert mezo["started"] == "2026-01-31T12:00:00"
    assert (mezo["last_step"], mezo["forwards_to_best"]) == (40, 40)
    logged = logged.set_index(["run_id", "step"])
    for name, seed in (("mezo-4", 1), ("bszo-4", 5)):  # live alone; exported with a live tail
        wanted = pd.DataFrame(rows(GOOD, seed)).set_index("_step").drop(columns="_timestamp")
        seen = logged.loc[name, list(wanted.columns)]
        pd.testing.assert_frame_equal(seen, wanted, check_names=False, check_exact=True)
    assert not [column for column in logged.columns if column.startswith("_")]


def test_only_what_is_new_or_has_changed_is_read(cloud, tmp_path):
    cloud.refuse_scan_of = "mezo-1"
    with pytest.raises(LogError, match="entity/project/mezo-1"):
        ask(tmp_path)
    cloud.refuse_scan_of = None
    first = ask(tmp_path)  # goes on where the other reading was interrupted
    assert sorted(cloud.scanned) == ["bszo-4", "mezo-1", "mezo-4"]
    for one, other in zip(first, ask(tmp_path), strict=True):
        pd.testing.assert_frame_equal(one, other)
    cloud.runs[0].state, cloud.runs[0].heartbeat = "running", "2026-01-31T13:00:00Z"
    cloud.runs[0].live.append({"_step": 41, "train/loss": 0.125})
    _, changed = ask(tmp_path)
    assert sorted(cloud.scanned) == ["bszo-4", "mezo-1", "mezo-4", "mezo-4"]
    assert changed.set_index(["run_id", "step"]).loc[("mezo-4", 41), "train/loss"] == 0.125


def test_errors_are_one_sentence(cloud, tmp_path, monkeypatch):
    with pytest.raises(LogError, match=r"entity/elsewhere[^\n]*$"):
        ask(tmp_path, "entity/elsewhere")
    monkeypatch.delenv("WANDB_API_KEY")
    with pytest.raises(LogError, match="WANDB_API_KEY"):
        ask(tmp_path)
