"""A training as a file of kilobytes: `record=` writes the losses of every step, `zo.replay` replays them.

The file is a trajectory with rates, see `zo.record.trajectory`.
"""

from collections.abc import Sequence
from pathlib import Path

from zo.optim.base import Rates, ZOOptimizer
from zo.record.appender import Appender
from zo.record.header import digest_of, header_of
from zo.record.replay import check_noise
from zo.record.trajectory import Frames, Trajectory, TrajectoryError

DIGEST_EVERY = 100
"""Steps between digests of the weights; the first ones stand after steps 1, 2, 4, 8, …"""


def read_record(path: Path, data: bytes | None = None) -> Trajectory:
    """Returns a record's content.

    Raises:
        TrajectoryError: If there is no such file, or it is no record.
    """
    found = Trajectory.read(path) if data is None else Trajectory.decode(data, path)
    if not found.header.groups:
        raise TrajectoryError(f"{path}: a run's trajectory; zo trajectory replays it")
    return found


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

    def begin(self, merged: bool = False) -> None:
        """Opens the file before a step, unless it is open and ends where the training is.

        Args:
            merged: Whether factors were merged since the last step, see `restore=factors`.

        Raises:
            FileExistsError: If the file exists and the training starts at step 0.
            TrajectoryError: If the training continues from a state and the file has not its steps, or a step was
                broken off whose probes left rounding in the weights.
        """
        if self.broken_off:
            restore = self._method.params.policy.name
            raise TrajectoryError(
                f"{self._path}: a step was broken off, and restore={restore!r} left rounding in the"
                " weights that no replay makes; load a saved state with its weights, or train with restore='snapshot'"
            )
        if self._file is None or self._method.step_index != self._step:
            self._open(merged)
        if merged:
            self._write(self._frames.encode(b"F", self._step))

    def _open(self, merged: bool) -> None:
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
            check_noise(found, header.noise)
            other = step == 0 and found.header.base != header.base
            digest = b"" if merged else found.digests.get(step, b"")  # of unmerged weights
            if other or digest not in (b"", digest_of(self._method)):
                raise TrajectoryError(
                    f"{self._path}: the weights are not those after its step {step}; load the model's, too"
                )
            self._file = Appender(self._path, found.ends[step])
            self._opened, self._step = True, step
            self._rates = found.rates[step - 1] if step else ()
            return
        if self._path.exists():
            raise FileExistsError(f"record: {self._path} exists; remove it or name another file")
        self._file = Appender(self._path, 0)
        self._opened = True
        self._write(header.encode())

    def append(self, rates: Sequence[Rates], losses: Sequence[float]) -> None:
        """Adds a step.

        Raises:
            OSError: If the disk is full. The next call adds this step, too.
        """
        step, frames, flat = self._method.step_index, b"", tuple(v for r in rates for v in r)
        if flat != self._rates:
            frames = self._frames.encode(b"L", step - 1, *flat)
            self._rates = flat
        frames += self._frames.encode(b"S", step, *losses)
        if step % DIGEST_EVERY == 0 or (step & (step - 1)) == 0:
            frames += self._frames.encode(b"D", step, digest_of(self._method))
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

    def close(self, merged: bool = False) -> None:
        """Closes the file with a digest of the last step's weights, unless factors were merged into them since."""
        if self._file is not None and not self.broken_off and self._step == self._method.step_index:
            has_one = read_record(self._path).digests.get(self._step) is not None
            if self._step and not has_one and not merged:
                self._write(self._frames.encode(b"D", self._step, digest_of(self._method)))
            self.suspend()
