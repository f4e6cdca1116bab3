"""Whole states on disk, weights and optimizer, from which a run goes on without repeating its steps.

A checkpoint is a directory `checkpoints/step-00001000` with `state.pt`, weights and optimizer as torch saves them, and
`manifest.json`: version, run id, step, length and hash of that file, and its own checksum. It is written under another
name and renamed when the disk has it. One that is torn, altered, of another version or of another run is passed over
with a message.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from mmap import MAP_SHARED
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.serialization import set_default_mmap_options, skip_data
from torch.utils._pytree import tree_leaves, tree_map_only

from zo.config import digests
from zo.optim.base import ZOOptimizer
from zo.record.appender import sync_directory
from zo.run.store import atomic
from zo.weights.sharded import shared_as, whole
from zo.weights.space import ParameterSpace

VERSION = 3
FOLDER = "checkpoints"
KEPT = 2  # Newest checkpoints that stay: should one be torn by a dying disk, there is another
STATE, MANIFEST = "state.pt", "manifest.json"


class CheckpointError(ValueError):
    """A checkpoint that must not be loaded; one sentence that says why."""


def save(run: Path, optimizer: ZOOptimizer, keep: int | None = None, writes: bool = True) -> None:
    """Writes the state after the last step, and then removes all but the newest two and that of step `keep`.

    Sharded tensors are put together one after another: all processes that share them call this, and one `writes`.
    """
    if not writes:
        for tensor in _tensors(_content(optimizer)):
            whole(tensor)
        return
    step = optimizer.step_index
    partial = _place(run, step).with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        _write(partial, run.resolve().name, optimizer)
    except Exception:
        shutil.rmtree(partial, ignore_errors=True)  # a full disk has room for the run's status then
        raise
    shutil.rmtree(_place(run, step), ignore_errors=True)
    partial.rename(_place(run, step))
    sync_directory(run / FOLDER)
    others = [at for at in steps(run) if at != keep]
    current = [at for at in others if at <= step]  # later ones are of rows that were lost
    for old in {*others} - {*current[-KEPT:]}:
        shutil.rmtree(_place(run, old))


def _write(place: Path, run_id: str, optimizer: ZOOptimizer) -> None:
    """Writes the state, tensor by tensor, and the manifest when the disk has it."""
    content, sharded = _content(optimizer), bool(optimizer.params.shards)
    with (place / STATE).open("wb") as file:
        try:
            (_save_sharded if sharded else torch.save)(content, file)
        except RuntimeError as error:  # it may hide that the disk is full
            raise error.__context__ or error from None
        file.flush()
        os.fsync(file.fileno())
    manifest = {"version": VERSION, "run_id": run_id, "step": optimizer.step_index}
    manifest |= {STATE: digests.read(place / STATE)}
    atomic.replace(place / MANIFEST, atomic.seal(manifest))


def _content(optimizer: ZOOptimizer) -> dict[str, Any]:
    """Returns weights and state; DTensors stand for what several processes share."""
    params = optimizer.params
    weights = dict(zip(params.names, _shared(params, params.settled()), strict=True))
    state = {name: _shared(params, of) for name, of in optimizer.state.items()}
    return {"weights": weights, "optimizer": optimizer.live_state() | state}


def _shared(params: ParameterSpace, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns local tensors, one per tensor of θ, as DTensors where those of θ are."""
    return [shared_as(p, t) for p, t in zip(params.parameters, tensors, strict=True)]


def _own(params: ParameterSpace, i: int, tensor: Tensor) -> Tensor:
    """Returns this process's part of a tensor of the shape of tensor `i`."""
    part = params.shards.get(i)
    return tensor if part is None else tensor[part.place]


def _save_sharded(content: dict[str, Any], file: IO[bytes]) -> None:
    """Writes a file with room for all tensors in one piece, then one tensor after another."""
    with FakeTensorMode(), skip_data(materialize_fake_tensors=True):
        like = lambda t: torch.empty(t.shape, dtype=t.dtype, device="cpu")  # noqa: E731
        empty = tree_map_only(Tensor, like, content)
        torch.save(empty, file)
    file.flush()
    with set_default_mmap_options(MAP_SHARED):
        written = torch.load(file.name, mmap=True, weights_only=True)
    for target, tensor in zip(_tensors(written), _tensors(content), strict=True):
        target.copy_(whole(tensor))


def _tensors(content: dict[str, Any]) -> list[Tensor]:
    """Returns the tensors of weights and state."""
    return [t for t in tree_leaves(content) if isinstance(t, Tensor)]


def steps(run: Path) -> list[int]:
    """Returns the steps of which there is a checkpoint, whole or not, ascending."""
    names = (place.name.removeprefix("step-") for place in (run / FOLDER).glob("step-*"))
    return sorted(int(name) for name in names if name.isdecimal())


def load_newest(run: Path, optimizer: ZOOptimizer, at_most: int) -> int:
    """Brings θ and optimizer to the newest whole checkpoint; says which ones it passed over, and why.

    Returns its step; 0, with nothing changed, if there is none.
    """
    for step in reversed([step for step in steps(run) if step <= at_most]):
        try:
            _load(run, optimizer, step)
        except CheckpointError as error:
            print(f"{error}; going back to an earlier one", file=sys.stderr)
        else:
            return step
    return 0


def copy(source: Path, run: Path, step: int) -> None:
    """Copies another run's checkpoint of a step that both runs have; nothing if it is not there or not whole."""
    try:
        manifest = _verify(source, step)
    except CheckpointError:
        return
    partial = _place(run, step).with_suffix(".partial")
    shutil.copytree(_place(source, step), partial)
    atomic.replace(partial / MANIFEST, atomic.seal(manifest | {"run_id": run.resolve().name}))
    shutil.rmtree(_place(run, step), ignore_errors=True)  # of a start that was killed
    partial.rename(_place(run, step))


def remove(run: Path, keep: int | None = None) -> None:
    """Removes all checkpoints but that of step `keep`, and what unfinished ones left."""
    remove_partial(run)
    for step in steps(run):
        if step != keep:
            shutil.rmtree(_place(run, step), ignore_errors=True)  # others may remove it, too
    with suppress(OSError):  # there is none, or one is kept
        (run / FOLDER).rmdir()


def remove_partial(run: Path) -> None:
    """Removes what checkpoints left that were not finished."""
    for partial in (run / FOLDER).glob("*.partial"):
        shutil.rmtree(partial)


def _load(run: Path, optimizer: ZOOptimizer, step: int) -> None:
    """Loads one checkpoint, all of it or nothing."""
    place, params = _place(run, step), optimizer.params
    _verify(run, step)
    state = torch.load(place / STATE, map_location="cpu", mmap=True, weights_only=True)
    found = {name: (p.shape, p.dtype) for name, p in state["weights"].items()}
    named = list(zip(params.names, params.parameters, strict=True))
    if found != {name: (p.shape, p.dtype) for name, p in named}:
        raise CheckpointError(f"{place} is of another model")
    for i, (name, p) in enumerate(zip(params.names, params.settled(), strict=True)):
        p.copy_(_own(params, i, state["weights"][name]))
    own = {
        name: [_own(params, i, t) for i, t in enumerate(state["optimizer"][name])]
        for name in optimizer.state
    }
    optimizer.load_state_dict(state["optimizer"] | own)


def _verify(run: Path, step: int) -> dict[str, Any]:
    """Makes sure that a checkpoint's file is the one that was written, for this run and step; returns its manifest."""
    place = _place(run, step)
    manifest = None
    with suppress(OSError):
        manifest = atomic.unseal((place / MANIFEST).read_bytes())
    if manifest is None:
        raise CheckpointError(f"{place} has no whole {MANIFEST} of version {VERSION}")
    if manifest.get("version") != VERSION:
        raise CheckpointError(f"{place} is of another version than {VERSION}")
    if (manifest.get("run_id"), manifest.get("step")) != (run.resolve().name, step):
        raise CheckpointError(f"{place} is of another run or step")
    try:
        found = digests.read(place / STATE)
    except OSError as error:
        raise CheckpointError(f"{place / STATE}: {error.strerror}") from None
    if found != manifest.get(STATE):
        raise CheckpointError(f"{place / STATE} is torn or was altered")
    return manifest


def _place(run: Path, step: int) -> Path:
    return run / FOLDER / f"step-{step:08d}"
