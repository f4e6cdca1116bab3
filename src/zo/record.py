"""A training as a file of kilobytes: `record=` writes what every step measured, `zo.replay` makes the steps again.

The file is a trajectory with rates, see `zo.run.trajectory`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from zo.optim.base import Rates, StepInfo, ZOOptimizer
from zo.run.atomic import Appender
from zo.run.trajectory import Frames, Header, Trajectory, TrajectoryError
from zo.weights.space import ParameterSpace


def read_record(path: Path, data: bytes | None = None) -> Trajectory:
    """Returns what a record holds.

    Raises:
        TrajectoryError: If there is no such file, or it is no record.
    """
    found = Trajectory.read(path) if data is None else Trajectory.decode(data, path)
    if not found.header.groups:
        raise TrajectoryError(f"{path}: a run's trajectory; python -m zo.trajectory replays it")
    return found


def check(found: Trajectory, here: Header) -> None:
    """Raises TrajectoryError if tensors, weights or noise of a record are not those that are here."""
    for key in ("groups", "decays"):
        if found.header.config[key] != here.config[key]:
            raise TrajectoryError(f"{found.path}: of other tensors or parameter groups")
    if found.header.base != here.base:
        raise TrajectoryError(f"{found.path}: starts from other weights ({found.header.base})")
    if found.header.noise != here.noise:
        raise TrajectoryError(f"{found.path}: its noise is {found.header.noise}, not {here.noise}")


def repeat(found: Trajectory, method: ZOOptimizer, count: int | None = None) -> StepInfo | None:
    """Makes the steps that a method lacks, without a forward pass, up to `count`; returns the last one's result."""
    info = None
    with torch.no_grad():
        for step in range(method.step_index, len(found.losses) if count is None else count):
            rates = found.rates[step]
            method.rates = [Rates(*rates[i : i + 2]) for i in range(0, len(rates), 2)]
            info = method.replay(found.losses[step])
    return info


class Recorder:
    """Writes a training's record.

    Args:
        path: The file. One that exists is continued where a loaded state ends, and never overwritten.
        method: What makes the steps.
    """

    def __init__(self, path: Path, method: ZOOptimizer):
        self._path = path
        self._method = method
        self._file: Appender | None = None
        self._rates: tuple[float, ...] = ()

    def begin(self) -> None:
        """Opens the file before a step, unless it is open.

        Raises:
            FileExistsError: If the file exists and the training starts at step 0.
            TrajectoryError: If the training continues from a state and the file has not its steps.
        """
        if self._file is not None:
            return
        step, header = self._method.step_index, header_of(self._method)
        self._frames = Frames(header)
        if step:
            found = read_record(self._path)
            if found.header.config != header.config or len(found.losses) < step:
                raise TrajectoryError(
                    f"{self._path}: not the record of this training's {step} steps"
                )
            self._file = Appender(self._path, found.ends[step])
            self._rates = found.rates[step - 1]
            return
        if self._path.exists():
            raise FileExistsError(f"record: {self._path} exists; remove it or name another file")
        self._file = Appender(self._path, 0)
        self._file.write(header.encode())

    def append(self, rates: Sequence[Rates], losses: Sequence[float]) -> None:
        """Adds a step."""
        assert self._file is not None
        step, frames, flat = self._method.step_index, b"", tuple(v for r in rates for v in r)
        if flat != self._rates:
            frames = self._frames.rates(step - 1, flat)
            self._rates = flat
        self._file.write(frames + self._frames.step(step, losses))

    def after(self, steps: int) -> bytes:
        """Returns what the file has after so many steps; after none, the header, too."""
        found = read_record(self._path)
        return self._path.read_bytes()[found.ends[steps] if steps else 0 : found.ends[-1]]

    def catch_up(self, header: Header) -> StepInfo | None:
        """Makes the steps of a file that exists, to go on with it; returns the last one's result.

        Raises:
            TrajectoryError: If it is of another training.
        """
        if not self._path.exists():
            return None
        found = read_record(self._path)
        check(found, header)
        if found.header.config != header.config:
            raise TrajectoryError(f"{self._path}: of other settings; name another file")
        self._frames = Frames(header)
        self._file = Appender(self._path, found.ends[-1])
        self._rates = found.rates[-1] if found.rates else ()
        return repeat(found, self._method)


class Received:
    """A record that arrives in pieces.

    Attributes:
        info: Result of the last step; None before the first.
    """

    def __init__(self, method: ZOOptimizer):
        self._method = method
        self._data = b""
        self.info: StepInfo | None = None

    def replay(self, piece: bytes) -> int:
        """Makes the steps that a further piece brings; returns the steps made by then."""
        self._data += piece
        self.info = repeat(read_record(Path("record"), self._data), self._method) or self.info
        return self._method.step_index


def header_of(method: ZOOptimizer) -> Header:
    """Returns what a file of these steps begins with."""
    space = method.params
    config: dict[str, Any] = {
        **asdict(method.config),
        "seed": method.seed,
        "restore": space.restore,
        "noise": space.engine.backend.split("-")[0],
        "rounding": space.rounding,
        "groups": method.group_of,
        "decays": space.decays,
    }
    return Header(
        run_id="",
        config=config,
        base=_fingerprint(space),
        parameters=space.numel,
        noise=space.engine.backend,
        losses_per_step=method.forwards_per_step,
        written_by={"torch": torch.__version__},
    )


def _fingerprint(space: ParameterSpace) -> str:
    """Returns a hash of the weights' dtypes, shapes and bits."""
    digest = hashlib.blake2b(digest_size=16)
    for p in space.tensors:
        digest.update(f"{p.dtype}{tuple(p.shape)}".encode())
        digest.update(p.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return f"blake2b:{digest.hexdigest()}"
