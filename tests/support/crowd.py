"""Processes that are connected by gloo, as torchrun starts them; each is joined or killed in the end."""

import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.forkserver import preloaded_context
from zo.distributed.processes import Processes, join


def free_port() -> int:
    """Returns a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    """Returns what torchrun tells a process."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def gather_results(
    world: int, function: Callable[..., Any], *args: Any, timeout_s: float = 60, **options: Any
) -> list[Any]:
    """Calls `function(processes, *args)` in connected processes; returns what each returned, or its exception."""
    context, port = preloaded_context(), free_port()
    pipes, started = [], []
    for rank in range(world):
        receiver, sender = context.Pipe(duplex=False)
        told = (environment(rank, world, port), sender, function, args, options)
        started.append(context.Process(target=_member, args=told))
        started[-1].start()
        sender.close()
        pipes.append(receiver)
    with ended(started):
        deadline = time.monotonic() + timeout_s
        return [_received(pipe, deadline) for pipe in pipes]


@contextmanager
def ended(processes: list[Any]) -> Iterator[None]:
    """Kills what is left of processes after the body."""
    try:
        yield
        for process in processes:
            process.join(10)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _received(pipe: Any, deadline: float) -> Any:
    if not pipe.poll(max(0.0, deadline - time.monotonic())):
        raise TimeoutError("a process did not answer in time")
    try:
        return pipe.recv()
    except EOFError:
        return None


def _member(
    env: dict[str, str],
    sender: Any,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    os.environ.update(env)
    try:
        result = function(join(options.get("timeout", 30.0)), *args)
    except Exception as error:
        traceback.print_exc()
        result = RuntimeError(f"{type(error).__name__}: {error}")
    sender.send(result)
    sender.close()


def alone(function: Callable[..., Any], *args: Any) -> Any:
    """Returns what the function returns without other processes."""
    return function(Processes(), *args)
