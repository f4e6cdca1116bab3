"""A W&B server of one project, which answers what W&B's own client asks of it (recorded from wandb 0.31).

The client is the real one, wandb.Api with its core process; the server speaks GraphQL over HTTP on this machine.
"""

import gzip
import io
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


@dataclass
class CloudRun:
    """A run as the server has it; `exported` rows are in a parquet file, `live` ones not yet."""

    name: str
    config: dict[str, Any]
    summary: dict[str, Any]
    live: list[dict[str, Any]] = field(default_factory=list)
    exported: list[dict[str, Any]] = field(default_factory=list)
    group: str | None = "quickstart"
    state: str = "finished"
    created: str = "2026-01-31T12:00:00Z"
    heartbeat: str = "2026-01-31T12:10:00Z"

    @property
    def last_step(self) -> int:
        return max((row["_step"] for row in [*self.exported, *self.live]), default=-1)

    def node(self) -> dict[str, Any]:
        return {
            "id": f"id-{self.name}",
            "projectId": "1",
            "tags": [],
            "name": self.name,
            "displayName": self.name,
            "sweepName": None,
            "state": self.state,
            "config": json.dumps({k: {"value": v, "desc": None} for k, v in self.config.items()}),
            "group": self.group,
            "jobType": None,
            "commit": None,
            "readOnly": False,
            "createdAt": self.created,
            "heartbeatAt": self.heartbeat,
            "description": "",
            "notes": None,
            "systemMetrics": None,
            "summaryMetrics": json.dumps(self.summary),
            "historyLineCount": len(self.exported) + len(self.live),
            "user": {"name": "someone", "username": "someone"},
            "historyKeys": {"lastStep": self.last_step, "sets": [], "keys": {}},
        }


@dataclass
class Cloud:
    """The project entity/project, what was asked of it, and what it refuses."""

    runs: list[CloudRun] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    scanned: list[str] = field(default_factory=list)
    refuse_scan_of: str | None = None
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, name: str, variables: dict[str, Any]) -> Any:
        with self.lock:
            self.asked[name] += 1
        if name in ("Viewer", "GetDefaultEntity"):
            who = {"id": "VXNlcjox", "username": "someone", "entity": "entity"}
            return {"viewer": {**who, "flags": "{}", "teams": {"edges": []}}}
        if variables.get("project") != "project":
            return {"project": None}
        if name == "Runs":
            return {"project": self._page(variables)}
        (run,) = [
            r
            for r in self.runs
            if r.name in (variables.get("name"), variables.get("run"), variables.get("runName"))
        ]
        if name == "HistoryPage":
            low, high = variables["minStep"], variables["maxStep"]
            rows = [json.dumps(row) for row in run.live if low <= row["_step"] < high]
            return {"project": {"run": {"history": rows}}}
        if name == "RunParquetHistory":
            with self.lock:
                self.scanned.append(run.name)
            steps = [{"_step": row["_step"]} for row in run.live]  # where the live rows begin
            urls = [f"{self.url}/{run.name}.parquet"] if run.exported else []
            return {
                "project": {"run": {"parquetHistory": {"parquetUrls": urls, "liveData": steps}}}
            }
        if name == "RunHistoryKeys":
            return {"project": {"run": {"historyKeys": run.node()["historyKeys"]}}}
        assert name == "Run", name
        return {"project": {"run": run.node()}}

    def _page(self, variables: dict[str, Any]) -> dict[str, Any]:
        start = int(variables.get("cursor") or 0)
        end = min(start + variables["perPage"], len(self.runs))
        edges = [{"node": self.runs[i].node(), "cursor": str(i + 1)} for i in range(start, end)]
        page = {"endCursor": str(end), "hasNextPage": end < len(self.runs)}
        counts = {"internalId": "1", "runCount": len(self.runs), "readOnly": False}
        return {**counts, "runs": {"edges": edges, "pageInfo": page}}

    def parquet(self, name: str) -> bytes:
        (run,) = [r for r in self.runs if r.name == name]
        keys = sorted({key for row in run.exported for key in row})
        table = pa.table({key: [row.get(key) for row in run.exported] for key in keys})
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        return buffer.getvalue()


@contextmanager
def serve(cloud: Cloud) -> Iterator[Cloud]:
    """The server, for the time of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200, cloud.parquet(self.path.strip("/").removesuffix(".parquet")))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path != "/graphql":  # the client's own statistics
                self._send(200, b"")
                return
            asked = json.loads(body)
            (name,) = re.findall(r"query\s+(\w+)", asked["query"])
            variables = asked.get("variables") or {}
            if name == "RunParquetHistory" and variables["runName"] == cloud.refuse_scan_of:
                self._send(400, json.dumps({"errors": [{"message": "no scan today"}]}).encode())
                return
            self._send(200, json.dumps({"data": cloud.answer(name, variables)}).encode())

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    cloud.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield cloud
    finally:
        server.shutdown()
        server.server_close()
