"""One run on several processes: process 0 finds and writes the run's directory, the others follow it.

Process 0 sends the others what they need to begin: the directory, and the rows of earlier attempts. From then on every
step gathers losses, and all processes take the same decisions from the same numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from zo.config import RunConfig
from zo.distributed.agreement import check_same, code_digest
from zo.distributed.processes import Processes, ProcessesError, is_loss
from zo.lm.config import ModelError
from zo.run.assembly import Session
from zo.run.command import Shared
from zo.run.losses import BatchLoss
from zo.run.provenance import device_name
from zo.run.signals import Lost
from zo.run.store.directory import flat
from zo.tasks.examples import batch_indices
from zo.weights.offloaded import OffloadError
from zo.weights.restore import RestoreError

OWN = ("device", "threads")  # Settings that may differ between processes


@dataclass
class Start:
    """What a process begins a run with: what process 0 tells the others, once, and what earlier runs left."""

    processes: Processes
    shared: Shared
    told: bool = False

    def tell(self, what: Path | dict[str, Any] | ProcessesError) -> None:
        """Sends the run's directory, the status of a run that has ended, or why there is neither; only the first."""
        if not self.told:
            self.told = True
            self.processes.exchange(what)

    def wait(self) -> Path | dict[str, Any]:
        """Returns, on the other processes, what process 0 tells. Raises ProcessesError if that is one."""
        found: Path | dict[str, Any] | ProcessesError = self.processes.exchange(None)[0]
        if isinstance(found, ProcessesError):
            raise found
        return found


def check_start(processes: Processes, cfg: RunConfig) -> None:
    """Raises ProcessesError if settings or code of the processes differ."""
    tensor = cfg.distributed.tensor
    if tensor > 1 and processes.world != tensor:
        raise ProcessesError(
            f"distributed.tensor={tensor}: needs as many processes, and there are {processes.world};"
            f" torchrun --nproc-per-node {tensor} train.py ..."
        )
    if processes.world == 1:
        return
    settings = {k: v for k, v in flat(asdict(cfg)).items() if k not in OWN}
    check_same(processes, settings, "start all processes with the same command")
    code = {"the code of zo": code_digest(), "torch's version": torch.__version__}
    check_same(processes, code, "install the same version everywhere")


def check_loaded(processes: Processes, cfg: RunConfig, session: Session) -> None:
    """Raises ProcessesError if processes loaded different things, or are too many to divide the method's steps."""
    if processes.world == 1:
        return
    params = session.assembly.params
    check_same(processes, session.read, "all processes need the same data and base weights")
    if cfg.precision.noise == "torch":
        device = {"the device": device_name(params.like[0].device)}
        right = "precision.noise=torch draws differently there, philox does not"
        check_same(processes, device, right)
    if cfg.steps == 0 or params.shards:
        return
    if not cfg.optimizer.replays:
        raise ProcessesError(
            f"optimizer={cfg.optimizer.name}: backpropagation runs in one process; start it without torchrun"
        )
    passes, why, more = _passes(cfg, session), cfg.optimizer.name, "give more shards"
    shards = cfg.distributed.shards
    if params.policy.constraints.low_rank:
        budget = f"{cfg.precision.branch_gib:g} GiB" if _sized(session) else "a pass"
        why = f"restore=factors measures all points in {budget} together"
        more = "a smaller precision.branch_gib makes more of them" if _sized(session) else more
    if processes.world > passes * shards:
        raise ProcessesError(
            f"{processes.world} processes for {passes} forward passes per step ({why}) × distributed.shards={shards}:"
            f" start at most {passes * shards}, or {more}"
        )


def _sized(session: Session) -> bool:
    """Returns whether the points of a step are measured in as many passes as their memory asks for."""
    config = session.assembly.optimizer.config
    return config.low_rank and (not config.accumulates_factors or session.scorer.writes)


def _passes(cfg: RunConfig, session: Session) -> int:
    """Returns the forward passes of a step over one shard; of the first mini-batch where they depend on it."""
    params, count = session.assembly.params, int(cfg.optimizer.forwards_per_step)
    if not params.policy.constraints.low_rank:
        return count
    indices = batch_indices(len(session.train), cfg.batch_size, cfg.seed, 0)
    part = indices[: cfg.batch_size // cfg.distributed.shards]
    batch = session.scorer.collate([session.train[i] for i in part])
    loss = BatchLoss(session.scorer, batch, params)
    try:
        direction = session.assembly.optimizer.direction()
        return len(params.policy.passes(loss, [[(1.0, direction)]] * count))
    except RestoreError as error:
        raise ModelError(error.in_suite) from None


def notes(processes: Processes, cfg: RunConfig, session: Session) -> Iterator[str]:
    """Yields what a person should know of the division, one sentence each."""
    device = session.assembly.device
    cpu = device.type == "cpu"
    level = torch.backends.cpu.get_cpu_capability() if cpu else device_name(device)
    if len(levels := {*processes.exchange(level)}) > 1:
        yield (
            f"the processes compute on {' and '.join(sorted(levels))}, which round differently: the last digits of a"
            " loss depend on the process that measures it, so this run is not that of one process bit for bit"
        )
    if session.assembly.params.shards:
        yield f"{processes.world} processes hold a part of each tensor"
        return
    if processes.world == 1 or cfg.steps == 0:
        return
    passes = cfg.distributed.shards * _passes(cfg, session)
    turns = -(-passes // processes.world)
    yield f"{processes.world} processes divide {passes} forward passes per step"
    if passes % processes.world:
        yield (
            f"{processes.world} does not divide {passes}: a step takes {turns} passes one after another, and some"
            " processes wait meanwhile"
        )


@contextmanager
def losing() -> Iterator[None]:
    """Turns the loss of a process, or of a file of offloaded weights that was removed or changed, into Lost."""
    try:
        yield
    except RuntimeError as error:
        file = isinstance(error, OffloadError)
        if not (file or is_loss(error)):
            raise
        print(error, file=sys.stderr)
        raise Lost("lost file" if file else "lost process") from None
