"""Processes that begin with all libraries imported, also connected by gloo as torchrun starts them."""

import itertools
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import forkserver
from typing import Any

import pytest

from zo.distributed.processes import join


def preloaded_context() -> Any:
    """Returns the context whose processes are forked from one that has imported what a run needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.preloaded"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # this repository, too
        forkserver.ensure_running()
    return context


PORTS = itertools.cycle(range(10_000, 32_000))
"""Ports that no system gives to a process that asks for any: one that is free stays so until it is used."""


def free_port() -> int:
    for port in itertools.islice(PORTS, os.getpid() * 97 % 22_000, None):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def environments(world: int, port: int) -> list[dict[str, str]]:
    """Returns what torchrun tells each process."""
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **shared} for rank in range(world)]


def gather_results(
    world: int, function: Callable[..., Any], *args: Any, timeout_s: float = 300
) -> list[Any]:
    """Calls `function(processes, *args)` in connected processes; returns what each returned."""
    with preloaded_context().Pool(world) as pool:  # no process ends before all have begun
        calls = [(env, function, args) for env in environments(world, free_port())]
        return pool.starmap_async(_member, calls, chunksize=1).get(timeout_s)


def _member(env: dict[str, str], function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    os.environ.update(env)
    return function(join(timeout=120), *args)
