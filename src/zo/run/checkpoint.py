"""Whole states on disk, weights and optimizer, from which a run goes on without repeating its steps.

A checkpoint is a directory `checkpoints/step-00001000` with `weights.safetensors`, `state.safetensors` and
`manifest.json`: version, run id, step, the optimizer's state without its tensors, length and hash of the other two, and
its own checksum. It is written under another name and renamed when the disk has it. One that is torn, altered, of
another version or of another run is passed over with a message.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from zo.optim.base import ZOOptimizer
from zo.run import atomic, tensor_file

VERSION = 2
FOLDER = "checkpoints"
KEPT = 2
"""Newest checkpoints that stay: should one be torn by a dying disk, there is another."""

WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.safetensors", "manifest.json"


class CheckpointError(ValueError):
    """A checkpoint that must not be loaded; one sentence that says why."""


def save(run: Path, run_id: str, optimizer: ZOOptimizer, keep: int | None = None) -> None:
    """Writes the state after the step that was made last, and then removes all but the newest two.

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
    others = [at for at in steps(run) if at != keep]
    current = [at for at in others if at <= step]  # later ones are of rows that were lost
    for old in {*others} - {*current[-KEPT:]}:
        shutil.rmtree(_place(run, old))


def _write(place: Path, run_id: str, optimizer: ZOOptimizer) -> None:
    """Writes the state's files, and the manifest when the disk has them."""
    params = optimizer.params
    tensors: list[Tensor] = []
    state = _without_tensors(optimizer.live_state(), tensors)
    files = {
        WEIGHTS: tensor_file.write(place / WEIGHTS, params.names, params.tensors),
        STATE: tensor_file.write(place / STATE, [str(i) for i in range(len(tensors))], tensors),
    }
    step = optimizer.step_index
    manifest = {"version": VERSION, "run_id": run_id, "step": step, "state": state, "files": files}
    atomic.replace(place / MANIFEST, atomic.seal(manifest))


def _without_tensors(state: Any, tensors: list[Tensor]) -> Any:
    """Returns a nested state as JSON can hold it, and adds its tensors to a list, to whose places it refers."""
    if isinstance(state, Tensor):
        tensors.append(state)
        return {"tensor": str(len(tensors) - 1)}
    if isinstance(state, dict):
        return {"dict": [[key, _without_tensors(value, tensors)] for key, value in state.items()]}
    if isinstance(state, list | tuple):
        return {type(state).__name__: [_without_tensors(value, tensors) for value in state]}
    return {"value": state}


def _with_tensors(state: Any, file: Any) -> Any:
    """Returns what `_without_tensors` was given, with the tensors of an open safetensors file."""
    ((kind, content),) = state.items()
    if kind == "tensor":
        return file.get_tensor(content)
    if kind == "dict":
        return {key: _with_tensors(value, file) for key, value in content}
    if kind in ("list", "tuple"):
        values = [_with_tensors(value, file) for value in content]
        return values if kind == "list" else tuple(values)
    return content


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


def remove(run: Path, keep: int | None = None) -> None:
    """Removes all checkpoints but that of step `keep`, and what unfinished ones left."""
    remove_partial(run)
    for step in steps(run):
        if step != keep:
            shutil.rmtree(_place(run, step))
    if (run / FOLDER).is_dir() and not any((run / FOLDER).iterdir()):
        (run / FOLDER).rmdir()


def remove_partial(run: Path) -> None:
    """Removes what checkpoints left that were not finished."""
    for partial in (run / FOLDER).glob("*.partial"):
        shutil.rmtree(partial)


def _load(run: Path, run_id: str, optimizer: ZOOptimizer, step: int) -> None:
    """Loads one checkpoint, all of it or nothing.

    Raises:
        CheckpointError: If it must not be loaded.
    """
    place, params = _place(run, step), optimizer.params
    state = _verified(place, run_id, step)["state"]
    with safe_open(place / WEIGHTS, "pt") as file:
        shapes = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        found = {n: (tuple(s.get_shape()), s.get_dtype()) for n, s in shapes.items()}
        wanted = {
            n: (tuple(t.shape), tensor_file.DTYPES[t.dtype])
            for n, t in zip(params.names, params.tensors, strict=True)
        }
        if found != wanted:
            raise CheckpointError(f"{place} is of another model")
        for name, p in zip(params.names, params.tensors, strict=True):
            p.copy_(file.get_tensor(name))
    with safe_open(place / STATE, "pt") as file:
        optimizer.load_state_dict(_with_tensors(state, file))


def _verified(place: Path, run_id: str, step: int) -> dict[str, Any]:
    """Returns the manifest of a checkpoint whose files are those that were written, for this run and step.

    Raises:
        CheckpointError: If they are not.
    """
    try:
        manifest = atomic.unseal((place / MANIFEST).read_bytes())
    except OSError:
        manifest = None
    if manifest is None:
        raise CheckpointError(f"{place} has no whole {MANIFEST} of version {VERSION}")
    if manifest.get("version") != VERSION:
        raise CheckpointError(f"{place} is of another version than {VERSION}")
    if (manifest.get("run_id"), manifest.get("step")) != (run_id, step):
        raise CheckpointError(f"{place} is of another run or step")
    for name in (WEIGHTS, STATE):
        try:
            found = tensor_file.measure(place / name)
        except OSError as error:
            raise CheckpointError(f"{place / name}: {error.strerror}") from None
        if found != manifest["files"].get(name):
            raise CheckpointError(f"{place / name} is torn or was altered")
    return manifest


def _place(run: Path, step: int) -> Path:
    return run / FOLDER / f"step-{step:08d}"
