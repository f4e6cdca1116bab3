"""A training as a file of kilobytes: `record=` writes what every step measured, `zo.replay` makes the steps again.

The file is a trajectory with rates, see `zo.record.trajectory`.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from zo.distributed.agreement import digests
from zo.optim.base import Rates, StepInfo, ZOOptimizer
from zo.record.appender import Appender
from zo.record.trajectory import Frames, Header, Trajectory, TrajectoryError
from zo.weights.space import ParameterSpace

DIGEST_EVERY = 100
"""Steps between digests of the weights; the first ones stand after steps 1, 2, 4, 8, …"""


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
    check_noise(found, here)


def check_noise(found: Trajectory, here: Header) -> None:
    """Raises TrajectoryError if the noise of a record is drawn otherwise here."""
    if found.header.noise != here.noise:
        raise TrajectoryError(f"{found.path}: its noise is {found.header.noise}, not {here.noise}")


def repeat(found: Trajectory, method: ZOOptimizer, count: int | None = None) -> StepInfo | None:
    """Makes the steps that a method lacks, without a forward pass, up to `count`; returns the last one's result.

    Raises:
        TrajectoryError: If the weights are not those of which the record has a digest.
    """
    info, compared = None, False
    count = len(found.losses) if count is None else count
    made_with, here = found.header.written_by.get("torch"), torch.__version__
    with torch.no_grad():
        for step in range(method.step_index, count):
            if step in found.folds:
                method.params.fold()
            rates = found.rates[step]
            method.rates = [Rates(*rates[i : i + 2]) for i in range(0, len(rates), 2)]
            info = method.replay(found.losses[step])
            if (expected := found.digests.get(step + 1)) is not None:
                compared = True
                if digest_of(method) != expected:
                    raise TrajectoryError(
                        f"{found.path}: after step {step + 1} the weights are not those of the training. It was"
                        f" recorded with torch {made_with}, and this is torch {here}; other causes are another"
                        " processor or library, and weights that something else changed between two steps"
                    )
    if info is not None and not compared and made_with != here:
        warnings.warn(
            f"{found.path}: recorded with torch {made_with}, and this is torch {here}; the record has no digest that"
            " shows whether the weights are the same",
            stacklevel=3,
        )
    return info


class Recorder:
    """Writes a training's record.

    Args:
        path: The file. One that exists is continued where a loaded state ends, and never overwritten.
        method: What makes the steps.

    Attributes:
        broken_off: Whether a step was broken off that left rounding in the weights.
    """

    def __init__(self, path: Path, method: ZOOptimizer):
        self._path = path
        self._method = method
        self._file: Appender | None = None
        self._opened = False
        self._step = 0  # the record's last one
        self._unsaved = b""  # what a full disk did not take
        self._rates: tuple[float, ...] = ()
        self.broken_off = False

    def begin(self, folded: bool = False) -> None:
        """Opens the file before a step, unless it is open and ends where the training is.

        Args:
            folded: Whether the weights were folded since the last step, see `restore=factors`.

        Raises:
            FileExistsError: If the file exists and the training starts at step 0.
            TrajectoryError: If the training continues from a state and the file has not its steps, or a step was
                broken off whose probes left rounding in the weights.
        """
        if self.broken_off:
            raise TrajectoryError(
                f"{self._path}: a step was broken off, and restore={self._method.params.restore!r} left rounding in the"
                " weights that no replay makes; load a saved state with its weights, or train with restore='snapshot'"
            )
        if self._file is None or self._method.step_index != self._step:
            self._open(folded)
        if folded:
            self._write(self._frames.fold(self._step))

    def _open(self, folded: bool) -> None:
        """Opens the file where the training is."""
        step, header = self._method.step_index, header_of(self._method)
        self._frames = Frames(header)
        if step or self._opened:
            self.suspend()
            found = read_record(self._path)
            if found.header.config != header.config or len(found.losses) < step:
                raise TrajectoryError(
                    f"{self._path}: not the record of this training's {step} steps"
                )
            check_noise(found, header)
            other = step == 0 and found.header.base != header.base
            digest = b"" if folded else found.digests.get(step, b"")  # of the weights before a fold
            if other or digest not in (b"", digest_of(self._method)):
                raise TrajectoryError(
                    f"{self._path}: the weights are not those after its step {step}; load the model's, too"
                )
            self._continue(found, step)
            return
        if self._path.exists():
            raise FileExistsError(f"record: {self._path} exists; remove it or name another file")
        self._file = Appender(self._path, 0)
        self._opened = True
        self._write(header.encode())

    def _continue(self, found: Trajectory, step: int) -> None:
        """Opens the file and cuts off what follows a step."""
        self._file, self._opened, self._step = Appender(self._path, found.ends[step]), True, step
        self._rates = found.rates[step - 1] if step else ()

    def append(self, rates: Sequence[Rates], losses: Sequence[float]) -> None:
        """Adds a step.

        Raises:
            OSError: If the disk is full. The next call adds this step, too.
        """
        step, frames, flat = self._method.step_index, b"", tuple(v for r in rates for v in r)
        if flat != self._rates:
            frames = self._frames.rates(step - 1, flat)
            self._rates = flat
        frames += self._frames.step(step, losses)
        if step % DIGEST_EVERY == 0 or (step & (step - 1)) == 0:
            frames += self._frames.digest(step, digest_of(self._method))
        self._step = step
        self._write(frames)

    def _write(self, frames: bytes) -> None:
        assert self._file is not None
        self._unsaved += frames
        self._file.write(self._unsaved)
        self._unsaved = b""

    def suspend(self) -> None:
        """Closes the file; the next step opens it where the training is then."""
        if self._file is not None:
            self._write(b"")
            self._file.close()
        self._file, self.broken_off = None, False

    def close(self, folded: bool = False) -> None:
        """Closes the file with a digest of the last step's weights, unless they were folded since."""
        if self._file is not None and not self.broken_off and self._step == self._method.step_index:
            has_one = read_record(self._path).digests.get(self._step) is not None
            if self._step and not has_one and not folded:
                self._write(self._frames.digest(self._step, digest_of(self._method)))
            self.suspend()


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
        base=fingerprint(space),
        parameters=space.numel,
        noise=space.engine.backend,
        losses_per_step=method.losses_per_step,
        written_by={"torch": torch.__version__},
    )


def fingerprint(space: ParameterSpace) -> str:
    """Returns a hash of the weights' dtypes, shapes and bits."""
    digest = hashlib.blake2b(digest_size=16)
    for p in space.wholes()[1]:
        digest.update(f"{p.dtype}{tuple(p.shape)}".encode())
        digest.update(p.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return f"blake2b:{digest.hexdigest()}"


def digest_of(method: ZOOptimizer) -> bytes:
    """Returns a digest of the weights and of all state that the next step depends on, computed on their devices."""
    found = repr(digests(method)).encode()
    return hashlib.blake2b(found, digest_size=16).digest()
