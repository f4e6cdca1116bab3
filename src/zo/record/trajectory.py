"""A run as a file of kilobytes: the losses of its forward passes. Seeds and base weights restore any step's weights.

The file, all numbers little endian:

    b"ZOTRAJ", version: u16, length of the header: u32, the header: JSON, CRC-32 of all so far: u32
    per step, from 1:   b"S", its losses in the order of its forward passes: f64 × header.losses_per_step, CRC-32: u32
    behind a new best:  b"B", validation and test accuracy: 2 × f64, hash of the weights: 16 bytes, CRC-32: u32
    before other rates: b"L", learning rate and weight decay of each parameter group: 2 × f64 per group, CRC-32: u32
    now and then:       b"D", digest of weights and state after the step: 16 bytes, CRC-32: u32
    before a step:      b"F", CRC-32: u32, if factors were merged since the last one, under restore=factors

Bests are in the files of runs, which have version 1; rates, digests and merges in the records of the library, which
have version 2. Records of version 1 have no digests. The CRC-32 of a frame is that of the number of the
last step up to it (u32) and of the bytes before it.
"""

import json
import struct
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MAGIC = b"ZOTRAJ"
VERSIONS = {False: 1, True: 2}
"""Whether a file is a record of the library -> the version that is written."""
HASH = "xxh3_128:"
_START = struct.Struct("<6sHI")
_CRC = struct.Struct("<I")


class TrajectoryError(ValueError):
    """A file that is not a whole trajectory, or not of this run; one sentence that names it."""


@dataclass(frozen=True)
class Header:
    """Header of a trajectory file.

    Attributes:
        run_id: Of the run, see `zo.config.identity.run_id`.
        config: The run's scientific configuration: model, optimizer, precision, seed, lr among it.
        base: Hash of the weights at step 0, see `zo.run.provenance.weights_hash`.
        parameters: Number of trainable values.
        noise: What draws the directions, see `zo.noise.Engine`.
        losses_per_step: Forward passes of one step.
        written_by: Versions of the suite and of torch, and the digest of the method's code.
    """

    run_id: str
    config: dict[str, Any]
    base: str
    parameters: int
    noise: str
    losses_per_step: int
    written_by: dict[str, str]

    @property
    def groups(self) -> int:
        """Number of parameter groups of a record of the library; 0 of a run's trajectory."""
        return 1 + max(map(int, self.config.get("groups", [-1])))

    def encode(self) -> bytes:
        """Returns the file's beginning."""
        text = json.dumps(asdict(self), sort_keys=True).encode()
        start = _START.pack(MAGIC, VERSIONS[self.groups > 0], len(text)) + text
        return start + _CRC.pack(zlib.crc32(start))


@dataclass(frozen=True)
class Best:
    """An evaluation that was the best so far.

    Attributes:
        val_accuracy: Fraction.
        test_accuracy: Fraction.
        weights: Hash of θ there.
    """

    val_accuracy: float
    test_accuracy: float
    weights: str


class Frames:
    """Encodes and decodes the frames of a file."""

    def __init__(self, header: Header):
        other = struct.Struct(f"<{2 * header.groups}d" if header.groups else "<2d16s")
        step = struct.Struct(f"<{header.losses_per_step}d")
        self._bodies = {b"S": step, b"L" if header.groups else b"B": other}
        if header.groups:
            self._bodies |= {b"D": struct.Struct("<16s"), b"F": struct.Struct("")}

    def encode(self, kind: bytes, step: int, *content: Any) -> bytes:
        """Returns the bytes of a frame of a kind, see above; `step` is the last step up to it, its own included."""
        return self._sealed(step, kind + self._bodies[kind].pack(*content))

    def read(self, data: bytes, at: int, step: int) -> tuple[bytes, tuple[Any, ...], int] | None:
        """Decodes the frame at byte offset `at`, after `step` steps: returns kind, content, end; None if damaged."""
        kind = data[at : at + 1]
        if kind not in self._bodies:
            return None
        end = at + 1 + self._bodies[kind].size
        frame = data[at:end]
        if data[at : end + _CRC.size] != self._sealed(step + (kind == b"S"), frame):
            return None
        return kind, self._bodies[kind].unpack(frame[1:]), end + _CRC.size

    @staticmethod
    def _sealed(step: int, frame: bytes) -> bytes:
        return frame + _CRC.pack(zlib.crc32(frame, zlib.crc32(_CRC.pack(step))))


@dataclass
class Trajectory:
    """Content of a trajectory file.

    Attributes:
        path: Of the file, or of the rows that it was made from; begins messages.
        header: See `Header`.
        losses: Of every step in order, from step 1.
        bests: Step -> evaluation that was the best so far.
        rates: Of every step of a record: learning rate and weight decay of each parameter group.
        digests: Step -> digest of weights and state after it, of a record.
        merges: Steps after which factors were merged, of a record.
        ends: Length of a file up to each step, its digest included; `ends[0]` is the header's.
        torn: Whether the file has bytes after these steps that are not whole.
    """

    path: Path
    header: Header
    losses: list[tuple[float, ...]] = field(default_factory=list)
    bests: dict[int, Best] = field(default_factory=dict)
    rates: list[tuple[float, ...]] = field(default_factory=list)
    digests: dict[int, bytes] = field(default_factory=dict)
    merges: set[int] = field(default_factory=set)
    ends: list[int] = field(default_factory=list)
    torn: bool = False

    @classmethod
    def read(cls, path: Path) -> "Trajectory":
        """Returns a file's content, see `decode`.

        Raises:
            TrajectoryError: If there is no such file, or its beginning is not whole.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise TrajectoryError(f"{path}: {error.strerror}") from None
        return cls.decode(data, path)

    @classmethod
    def decode(cls, data: bytes, path: Path) -> "Trajectory":
        """Returns the steps of a file's content that come before its first torn or altered byte.

        Raises:
            TrajectoryError: If its beginning is not whole.
        """
        header, at = _decode_header(data, path)
        found, rates = cls(path, header, ends=[at]), ()
        frames = Frames(header)
        while (frame := frames.read(data, at, len(found.losses))) is not None:
            kind, content, at = frame
            if kind == b"L":
                rates = content
            elif kind == b"F":
                found.merges.add(len(found.losses))
            elif kind == b"S":
                found.losses.append(content)
                found.rates.append(rates)
                found.ends.append(at)
            elif kind == b"D":
                (found.digests[len(found.losses)],) = content
                found.ends[-1] = at
            else:
                val, test, digest = content
                found.bests[len(found.losses)] = Best(val, test, HASH + digest.hex())
        found.torn = at != len(data)
        return found

    def encode(self) -> bytes:
        """Returns the file's content."""
        frames = Frames(self.header)
        parts = [self.header.encode()]
        for step, losses in enumerate(self.losses, start=1):
            parts.append(frames.encode(b"S", step, *losses))
            if (best := self.bests.get(step)) is not None:
                digest = bytes.fromhex(best.weights.removeprefix(HASH))
                rated = best.val_accuracy, best.test_accuracy
                parts.append(frames.encode(b"B", step, *rated, digest))
        return b"".join(parts)

    def best_until(self, step: int) -> int | None:
        """Returns the step of the best evaluation up to a step, if there was one."""
        return max((s for s in self.bests if s <= step), default=None)


def _decode_header(data: bytes, path: Path) -> tuple[Header, int]:
    """Returns the header and where the steps start."""
    if not data.startswith(MAGIC) or len(data) < _START.size:
        raise TrajectoryError(f"{path}: not a trajectory")
    _, version, length = _START.unpack_from(data)
    end = _START.size + length
    if version not in VERSIONS.values():
        raise TrajectoryError(f"{path}: version {version}, but this suite reads versions 1 and 2")
    if data[end : end + _CRC.size] != _CRC.pack(zlib.crc32(data[:end])):
        raise TrajectoryError(f"{path}: its header is torn or was altered")
    return Header(**json.loads(data[_START.size : end])), end + _CRC.size
