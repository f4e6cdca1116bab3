"""A run at W&B, or in W&B's file on this machine. It is fed from the run's rows, and may fail: the run goes on."""

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from zo.config import RunConfig, TrackingConfig, describe, identity_settings
from zo.config.settings import chosen_mode
from zo.extras import in_time
from zo.run.command import Shared
from zo.run.store import atomic
from zo.run.store.directory import Inputs
from zo.run.store.rows import ATTEMPTS, LOSSES, METRICS, Row

FLUSH_SECONDS = 1.0
"""W&B writes its file at least this often; its own default of 15 s loses more in a crash."""

CONNECT_SECONDS, INIT_SECONDS, FINISH_SECONDS = 3.0, 20.0, 30.0
"""How long W&B is waited for: for a connection, for the run to begin there, and for its last rows to be sent."""

ONLY_IN_FILE = ("step", "best/", LOSSES)
"""Beginnings of keys that W&B's history does not have: its own step, what its summary has, and lists."""

ID = "wandb_id.txt"  # Has the W&B id of a run that was made anew; it is the run's id otherwise


class WandbRun:
    """One run at W&B, or in W&B's offline file, written from its first row.

    Where W&B cannot be reached or refuses, the run is logged offline instead. Of the `rows` W&B is sent those that it
    does not have.
    """

    def __init__(self, cfg: RunConfig, directory: Path, rows: Sequence[Row], shared: Shared):
        self._directory, self._shared = directory, shared
        self._options: dict[str, Any] = {
            "project": _project(cfg.tracking),
            "entity": cfg.tracking.entity,
            "id": wandb_id(directory),
            "name": describe(cfg),
            "group": cfg.tracking.group,
            "config": logged_config(cfg, directory),
            "dir": str(directory.absolute()),  # W&B's process may have begun elsewhere
            "resume": "allow",
        }
        self._run: Any = None
        self._mode = self._mode_of(cfg.tracking.mode)
        self._begin(rows)

    def _mode_of(self, mode: str) -> str:
        """Returns where the run is logged: online, offline or disabled.

        `auto` is WANDB_MODE if set, else online with a key and offline without. Without a connection it is offline.
        """
        mode = chosen_mode(mode)
        if mode not in ("auto", "online"):
            return mode
        import wandb

        if self._shared.wandb_failed:
            return "offline"
        try:
            settings = wandb.setup(wandb.Settings(silent=True)).settings
            if wandb.login(prompt=False, verify=False):  # W&B verifies the key when a run begins
                _connect(settings.base_url)
                return "online"
            if mode == "online":
                raise ValueError("no key: `wandb login`, or WANDB_API_KEY in the environment")
        except Exception as error:
            self._give_up(error)
        return "offline"

    def _give_up(self, error: Exception) -> None:
        """Says that W&B cannot be logged to, once, and notes it."""
        self._shared.wandb_failed = True
        why = f"W&B cannot be logged to: {_line(error)}"
        print(f"{why}; logged offline, `wandb sync` sends it later", file=sys.stderr)

    def feed(self, row: Row) -> None:
        """Sends a row."""
        data = {k: v for k, v in row.items() if not k.startswith(ONLY_IN_FILE)}
        self._call(lambda run: run.log(data, step=row["step"]))

    def finish(self, rows: Sequence[Row], summary: Mapping[str, Any]) -> bool:
        """Ends the run with its summary; one that was lost, or is not sent in time, is written offline from its rows.

        Returns whether W&B, or its offline file, has the whole run; also if it was to have nothing.
        """
        self._end(summary)
        if self._run is None and self._mode != "disabled":
            self._begin_offline(rows)
            self._end(summary)
        return self._run is not None or self._mode == "disabled"

    def abandon(self, status: str) -> None:
        """Ends an attempt that was `interrupted` or has `failed`."""
        self._end({"run/status": status}, exit_code=1)

    def _end(self, summary: Mapping[str, Any], exit_code: int = 0) -> None:
        self._call(lambda run: run.summary.update(dict(summary)))
        self._call(lambda run: run.finish(exit_code=exit_code))

    def _begin(self, rows: Sequence[Row]) -> None:
        """Begins the run, or goes on with it if it is online, and sends the rows that W&B does not have."""
        if self._mode == "disabled":
            return
        import wandb  # here: it takes two seconds, and a run without it needs none of them

        if self._mode == "offline":
            shutil.rmtree(self._directory / "wandb", ignore_errors=True)
        settings = wandb.Settings(
            silent=True,
            x_transaction_log_flush_interval=FLUSH_SECONDS,
            init_timeout=INIT_SECONDS,
            finish_timeout=FINISH_SECONDS,
            finish_timeout_raises=True,
        )
        try:
            self._run = wandb.init(**self._options | {"mode": self._mode}, settings=settings)
        except Exception as error:  # W&B raises whatever its connection raised
            if self._mode != "offline":
                self._give_up(error)
                self._begin_offline(rows)
                return
            self._lose(error)
            return
        known = self._run.step
        for row in rows:
            if row["step"] >= known:
                self.feed(row)

    def _begin_offline(self, rows: Sequence[Row]) -> None:
        """Begins the run that was lost anew."""
        import wandb

        with suppress(Exception):
            wandb.teardown()  # W&B's process, if there still is one, holds the run's id
        self._mode = "offline"
        self._begin(rows)

    def _call(self, call: Callable[[Any], object]) -> None:
        """Calls W&B; at its first failure says so and goes on without it."""
        try:
            if self._run is not None:
                call(self._run)
        except Exception as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        self._run = None
        print(
            f"W&B logging stopped ({type(error).__name__}: {_line(error)}); "
            f"{self._directory / METRICS} has all rows, from which it is logged offline at the end",
            file=sys.stderr,
        )


def logged_config(cfg: RunConfig, directory: Path) -> dict[str, Any]:
    """Returns what W&B shows as a run's configuration, made from the files in its directory."""
    attempts: list[dict[str, Any]] = [{}]
    path = directory / ATTEMPTS
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(ValueError):  # torn
            attempts.append(json.loads(line))
    inputs = Inputs.load(directory)
    told = ("after_step", "started", "git_revision", "device")
    return {
        **identity_settings(cfg),
        "provenance": {
            "run_id": directory.name,
            "sweep": cfg.tracking.group,
            "cell": cfg.tracking.cell,
            "inputs": json.dumps(inputs.files if inputs else {}, sort_keys=True),
            **{key: value for key, value in attempts[-1].items() if key != "after_step"},
            "attempts": [{key: one.get(key) for key in told} for one in attempts[1:]],
        },
    }


def wandb_id(directory: Path) -> str:
    """Returns the id of a run at W&B: the run's own, or the one of its newest beginning."""
    path = directory / ID
    return path.read_text(encoding="utf-8").strip() if path.exists() else directory.name


def renew_wandb_id(directory: Path) -> None:
    """Gives a run that is made anew another id at W&B, which has the earlier one's rows."""
    now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    atomic.replace(directory / ID, f"{directory.name}-{now}\n")


def _project(tracking: TrackingConfig) -> str:
    """Returns the W&B project: WANDB_PROJECT unless another one than the default was given."""
    given = tracking.project != TrackingConfig.project
    return tracking.project if given else os.environ.get("WANDB_PROJECT") or tracking.project


def _connect(server: str) -> None:
    """Connects to a server, or the proxy in front of it. Raises OSError without an answer in CONNECT_SECONDS."""
    url = urlsplit(server)
    proxy = None if proxy_bypass(url.hostname or "") else getproxies().get(url.scheme)
    first = urlsplit(proxy if proxy and "//" in proxy else f"//{proxy}") if proxy else url
    address = first.hostname or "", first.port or (80 if first.scheme == "http" else 443)
    connect = partial(socket.create_connection, address, CONNECT_SECONDS)
    found = in_time(connect, CONNECT_SECONDS)
    if not isinstance(found, socket.socket):
        why = getattr(found, "strerror", None) or f"no answer in {CONNECT_SECONDS:g} s"
        raise OSError(f"{address[0]}:{address[1]}: {why}")
    found.close()


def _line(error: Exception) -> str:
    """Returns an exception's message as one line."""
    return " ".join(str(error).split()) or type(error).__name__
