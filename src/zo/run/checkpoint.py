"""Whole states on disk, weights and optimizer, from which a run goes on without repeating its steps.

A checkpoint is a directory `checkpoints/step-00001000` with `weights.safetensors`, `optimizer.pt` and `manifest.json`:
version, run id, step, and length and hash of the other two. It is written under another name and renamed when the disk
has it. One that is torn, altered, of another version or of another run is passed over with a message.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors.torch import load_file, save_file

from zo.optim.base import ZOOptimizer
from zo.run import atomic

VERSION = 1
FOLDER = "checkpoints"
KEPT = 2
"""Newest checkpoints that stay: should one be torn by a dying disk, there is another."""

WEIGHTS, OPTIMIZER, MANIFEST = "weights.safetensors", "optimizer.pt", "manifest.json"


class CheckpointError(ValueError):
    """A checkpoint that must not be loaded; one sentence that says why."""


def save(run: Path, run_id: str, optimizer: ZOOptimizer, keep: int | None = None) -> None:
    """Writes the state after the step that was made last, and removes what is older than the newest two.

    Args:
        run: The run's directory.
        run_id: Its id.
        optimizer: Its optimizer, and with that its θ; `step_index` is the number of steps made.
        keep: A step whose checkpoint stays, too.
    """
    step = optimizer.step_index
    partial = _place(run, step).with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        _write(partial, run_id, optimizer)
    except Exception:
        shutil.rmtree(partial, ignore_errors=True)  # a full disk has room for the run's status then
        raise
    shutil.rmtree(_place(run, step), ignore_errors=True)
    partial.rename(_place(run, step))
    atomic.sync_directory(run / FOLDER)
    for old in [at for at in steps(run) if at != keep][:-KEPT]:
        shutil.rmtree(_place(run, old))


def _write(place: Path, run_id: str, optimizer: ZOOptimizer) -> None:
    """Writes the state's files, and the manifest when the disk has them."""
    params = optimizer.params
    tensors = {n: t.cpu().contiguous() for n, t in zip(params.names, params.tensors, strict=True)}
    save_file(tensors, place / WEIGHTS)
    torch.save(optimizer.state_dict(), place / OPTIMIZER)
    files = {name: _measure(place / name, sync=True) for name in (WEIGHTS, OPTIMIZER)}
    step = optimizer.step_index
    manifest = {"version": VERSION, "run_id": run_id, "step": step, "files": files}
    atomic.replace_json(place / MANIFEST, manifest)


def steps(run: Path) -> list[int]:
    """Returns the steps of which there is a checkpoint, whole or not, ascending."""
    names = (place.name.removeprefix("step-") for place in (run / FOLDER).glob("step-*"))
    return sorted(int(name) for name in names if name.isdecimal())


def load_newest(run: Path, run_id: str, optimizer: ZOOptimizer, at_most: int) -> int:
    """Brings θ and optimizer to the newest whole checkpoint; says which ones it passed over, and why.

    Args:
        run: The run's directory.
        run_id: Its id.
        optimizer: At step 0, and with it θ.
        at_most: The latest step that is wanted.

    Returns:
        The checkpoint's step; 0, with nothing changed, if there is none.
    """
    for step in reversed([step for step in steps(run) if step <= at_most]):
        try:
            _load(run, run_id, optimizer, step)
        except CheckpointError as error:
            print(f"{error}; going back to an earlier one", file=sys.stderr)
        else:
            return step
    return 0


def remove(run: Path, after: int = -1, keep: int | None = None) -> None:
    """Removes the checkpoints of steps later than `after` but that of step `keep`, and what unfinished ones left."""
    for partial in (run / FOLDER).glob("*.partial"):
        shutil.rmtree(partial)
    for step in steps(run):
        if step > after and step != keep:
            shutil.rmtree(_place(run, step))
    if (run / FOLDER).is_dir() and not any((run / FOLDER).iterdir()):
        (run / FOLDER).rmdir()


def _load(run: Path, run_id: str, optimizer: ZOOptimizer, step: int) -> None:
    """Loads one checkpoint, all of it or nothing.

    Raises:
        CheckpointError: If it must not be loaded.
    """
    place, params = _place(run, step), optimizer.params
    _verify(place, run_id, step)
    tensors = load_file(place / WEIGHTS)
    shapes = {n: (t.shape, t.dtype) for n, t in zip(params.names, params.tensors, strict=True)}
    if {n: (t.shape, t.dtype) for n, t in tensors.items()} != shapes:
        raise CheckpointError(f"{place} is of another model")
    state = torch.load(place / OPTIMIZER, map_location="cpu", weights_only=True)
    for name, p in zip(params.names, params.tensors, strict=True):
        p.copy_(tensors[name])
    optimizer.load_state_dict(state)


def _verify(place: Path, run_id: str, step: int) -> None:
    """Raises CheckpointError unless the files are those that were written, for this run and step."""
    try:
        manifest = json.loads((place / MANIFEST).read_text())
    except (OSError, ValueError):
        raise CheckpointError(f"{place} has no whole {MANIFEST}") from None
    if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
        raise CheckpointError(f"{place} is of another version than {VERSION}")
    if (manifest.get("run_id"), manifest.get("step")) != (run_id, step):
        raise CheckpointError(f"{place} is of another run or step")
    measured = manifest.get("files")
    for name in (WEIGHTS, OPTIMIZER):
        try:
            found = _measure(place / name)
        except OSError as error:
            raise CheckpointError(f"{place / name}: {error.strerror}") from None
        if not isinstance(measured, dict) or found != measured.get(name):
            raise CheckpointError(f"{place / name} is torn or was altered")


def _measure(path: Path, sync: bool = False) -> dict[str, Any]:
    """Returns length and hash of a file; waits until the disk has it, if asked to."""
    digest, length = xxhash.xxh3_128(), 0
    with path.open("r+b" if sync else "rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
            length += len(block)
        if sync:
            os.fsync(file.fileno())
    return {"bytes": length, "xxh3_128": digest.hexdigest()}


def _place(run: Path, step: int) -> Path:
    return run / FOLDER / f"step-{step:08d}"
