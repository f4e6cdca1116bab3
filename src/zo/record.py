"""A training as a file of kilobytes: `record=` writes what every step measured, `zo.replay` makes the weights again.

The file is a trajectory, see `zo.run.trajectory`, with one more kind of frame before the first step and before each
step whose rates differ from those of the step before:

    b"L", learning rate and weight decay of each parameter group: 2 × f64 per group, CRC-32: u32
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from zo.optim.base import Rates, StepInfo, ZOOptimizer
from zo.run.atomic import Appender
from zo.run.trajectory import Frames, Header, TrajectoryError, decode_header
from zo.weights.space import ParameterSpace

if TYPE_CHECKING:
    from zo.library import Parameters, ZerothOrder


class _Frames(Frames):
    """The frames of a trajectory, and those of rates."""

    def __init__(self, losses: int, groups: int):
        super().__init__(losses)
        self._bodies[b"L"] = struct.Struct(f"<{2 * groups}d")

    def rates(self, step: int, rates: Sequence[Rates]) -> bytes:
        """Returns the bytes of the rates from the step after `step` on."""
        return self._sealed(step, b"L" + self._bodies[b"L"].pack(*(v for r in rates for v in r)))


class Record:
    """A record that has been read.

    Args:
        path: The file.
        data: Its content, where it is not on this machine.

    Attributes:
        path: As given.
        data: The content up to the last whole frame.
        header: What the losses belong to.
        steps: Rates and losses of every step before the first torn or altered byte.
        ends: Length of the file up to each step; `ends[0]` is the header's.
        torn: Whether the file has bytes after these steps that are not whole.

    Raises:
        TrajectoryError: If there is no such file, or it is no record.
    """

    def __init__(self, path: Path, data: bytes | None = None):
        self.path = path
        if data is None:
            try:
                data = path.read_bytes()
            except OSError as error:
                raise TrajectoryError(f"{path}: {error.strerror}") from None
        self.header, at = decode_header(data, path)
        if "groups" not in self.header.config:
            raise TrajectoryError(f"{path}: a run's trajectory; python -m zo.trajectory replays it")
        groups = self.header.config["groups"]
        frames = _Frames(self.header.losses_per_step, max(groups) + 1)
        self.steps: list[tuple[list[Rates], tuple[float, ...]]] = []
        self.ends = [at]
        rates: list[Rates] = []
        while (found := frames.read(data, at, len(self.steps))) is not None:
            kind, content, at = found
            if kind == b"L":
                rates = [Rates(*content[i : i + 2]) for i in range(0, len(content), 2)]
            elif kind == b"S":
                self.steps.append((rates, content))
                self.ends.append(at)
        self.torn = at != len(data)
        self.data = data[:at]

    def check(self, here: Header) -> None:
        """Compares what the steps belong to with what is here.

        Raises:
            TrajectoryError: If tensors, weights or noise are others.
        """
        for key in ("groups", "decays"):
            if self.header.config[key] != here.config[key]:
                raise TrajectoryError(f"{self.path}: of other tensors or parameter groups")
        if self.header.base != here.base:
            raise TrajectoryError(f"{self.path}: starts from other weights ({self.header.base})")
        if self.header.noise != here.noise:
            raise TrajectoryError(
                f"{self.path}: its noise is {self.header.noise}, not {here.noise}"
            )

    def repeat(self, method: ZOOptimizer, count: int | None = None) -> StepInfo | None:
        """Makes the steps that a method lacks, without a forward pass, up to `count`; returns the last one's result."""
        info = None
        with torch.no_grad():
            for rates, losses in self.steps[method.step_index : count]:
                method.rates = rates
                info = method.replay(losses)
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
        self._frames = _Frames(method.forwards_per_step, len(set(method.group_of)))
        self._file: Appender | None = None
        self._rates: list[Rates] = []

    def begin(self) -> None:
        """Opens the file before a step, unless it is open.

        Raises:
            FileExistsError: If the file exists and the training starts at step 0.
            TrajectoryError: If the training continues from a state and the file has not its steps.
        """
        if self._file is not None:
            return
        step, header = self._method.step_index, header_of(self._method)
        if step:
            found = Record(self._path)
            if found.header.config != header.config or len(found.steps) < step:
                raise TrajectoryError(
                    f"{self._path}: not the record of this training's {step} steps"
                )
            self._file = Appender(self._path, found.ends[step])
            self._rates = found.steps[step - 1][0]
            return
        if self._path.exists():
            raise FileExistsError(f"record: {self._path} exists; remove it or name another file")
        self._file = Appender(self._path, 0)
        self._file.write(header.encode())

    def append(self, rates: list[Rates], losses: Sequence[float]) -> None:
        """Adds a step."""
        assert self._file is not None
        step, frames = self._method.step_index, b""
        if rates != self._rates:
            frames = self._frames.rates(step - 1, rates)
            self._rates = rates
        self._file.write(frames + self._frames.step(step, losses))

    def after(self, steps: int) -> bytes:
        """Returns what the file has after so many steps; after none, the header, too."""
        found = Record(self._path)
        return found.data[found.ends[steps] if steps else 0 :]

    def catch_up(self, header: Header) -> StepInfo | None:
        """Makes the steps of a file that exists, to go on with it; returns the last one's result.

        Raises:
            TrajectoryError: If it is of another training.
        """
        if not self._path.exists():
            return None
        found = Record(self._path)
        found.check(header)
        if found.header.config != header.config:
            raise TrajectoryError(f"{self._path}: of other settings; name another file")
        self._file = Appender(self._path, found.ends[-1])
        self._rates = found.steps[-1][0] if found.steps else []
        return found.repeat(self._method)


class Received:
    """A record that arrives in pieces.

    Args:
        method: What makes its steps.

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
        self.info = Record(Path("record"), self._data).repeat(self._method) or self.info
        return self._method.step_index


def replay(params: Parameters, record: str | Path, steps: int | None = None) -> ZerothOrder:
    """Makes the weights of a recorded training, without a forward pass.

    Args:
        params: The model before the first step, or its tensors, as they were given to the optimizer.
        record: The file that `record=` wrote.
        steps: How many steps to make again; None is all.

    Returns:
        The optimizer after these steps. Training can go on with it.

    Raises:
        TrajectoryError: If the file is no record, or of other weights, other groups or other noise.
        ValueError: If it has fewer steps.
    """
    from zo.library import method_named

    found = Record(Path(record))
    config = dict(found.header.config)
    name = [config.pop(key) for key in ("groups", "decays", "name")][-1]
    made = method_named(name)(params, 0.0, **config)
    found.check(header_of(made.method))
    count = len(found.steps) if steps is None else steps
    if not 0 <= count <= len(found.steps):
        raise ValueError(f"steps={steps}: {record} has {len(found.steps)}")
    made.goes_on_from(found.repeat(made.method, count))
    return made


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
