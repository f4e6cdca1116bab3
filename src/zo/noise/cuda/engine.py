"""Philox noise on a CUDA GPU: tensors of the same dtypes share a launch, which costs as much as 10⁷ values.

A launch finds addresses and sizes in one table on the GPU, coefficients and keys in another. Each is copied there when
it changes, by one asynchronous copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from torch.autograd.graph import increment_version

from zo.noise import compiling, philox
from zo.noise.cuda import passes, programs
from zo.noise.engines import (
    DTYPES,
    Group,
    GroupedTable,
    Move,
    PhiloxEngine,
    PreparedProgram,
    ProgramCall,
)
from zo.noise.keys import NoiseKey
from zo.noise.program import DRAW, Program

BLOCK, PROGRAM_BLOCK = 1024, 512
"""Blocks of four values per program: fewer of a `Program`, whose values all take registers."""

NO_KEY = NoiseKey(0, 0, 0, 0)


class TritonProgram(PreparedProgram):
    """A run is one launch for all tensors of the same dtypes."""

    def __init__(self, *call: *ProgramCall):
        program, lists, positions, keeps = call
        self.give(program)
        columns = [[*map(Tensor.numel, lists[0])], positions, keeps.view(np.int32)]
        for of in lists:
            columns += [[*map(Tensor.data_ptr, of)], [*map(Tensor.numel, of)]]
        self._rows = np.array(columns, np.int64).T
        dtypes = ([t.dtype for t in of] for of in lists)
        self._kinds = [*zip((t.device for t in lists[0]), *dtypes, strict=True)]

    def give(self, program: Program) -> None:
        """As `PreparedProgram.give`."""
        self._steps = steps_of(program)
        numbers = [step.number for step in program.steps]
        keys = program.keys + [NO_KEY] * (len(numbers) - len(program.keys))
        self._terms = tuple(zip(numbers, keys, strict=True))
        self._wide = bool(program.signs)

    def run_all(self) -> None:
        """As `PreparedProgram.run_all`."""
        self._run(range(len(self._rows)), self._rows)

    def run(self, chosen: Sequence[int], last: Sequence[Tensor]) -> None:
        """As `PreparedProgram.run`."""
        rows = self._rows[[*chosen]]
        rows[:, -2] = [*map(Tensor.data_ptr, last)]
        self._run(chosen, rows)
        increment_version(last)

    def _run(self, chosen: Sequence[int], rows: Any) -> None:
        kinds = [self._kinds[j] for j in chosen]
        for kind in dict.fromkeys(kinds):
            own, (device, *dtypes) = rows[[of == kind for of in kinds]], kind
            places, count = place_table(own, 4 * PROGRAM_BLOCK, device)
            if not count:
                continue
            with compiling.launching(), torch.cuda.device_of(places):
                programs.run[(count,)](
                    *(places, term_table(self._terms, device)),
                    STEPS=self._steps,
                    KINDS=tuple(map(DTYPES.index, dtypes)),
                    LEVELS=len(own).bit_length(),
                    WIDE=self._wide,
                    BLOCK=PROGRAM_BLOCK,
                    enable_fp_fusion=False,
                )


class TritonTable(GroupedTable):
    """A pass over all tensors of one dtype is one launch, with a table that stays on the GPU."""

    def _pass_of(self, own: Group, keeps: Any) -> Callable[[Move], None]:
        outs, thetas, ends, positions = own.columns
        sizes, bits = np.diff(ends, prepend=0), keeps.view(np.int32)
        rows = np.stack([sizes, positions, bits, outs, thetas], axis=1)
        places, count = place_table(rows, 4 * BLOCK, own.device)
        like, keep = torch.empty(0, dtype=own.dtype, device=own.device), bool((keeps != 1).any())
        return lambda move: _launch(like, like, move, count, places, len(rows), keep)


class TritonEngine(PhiloxEngine):
    """Philox noise on a CUDA GPU, or through Triton's interpreter."""

    backend = "philox-cuda"
    runs_programs = True
    prepared, tables = TritonProgram, TritonTable

    def _run(self, out: Tensor, theta: Tensor | None, move: Move) -> None:
        width = out.numel() if move.rows is None else out.shape[1]
        # A row may begin within a block of four normals, or of 16 signs.
        parts = triton.cdiv(width + (15 if move.signs else 3), 4 * BLOCK)
        count = parts * (1 if move.rows is None else len(move.rows))
        _launch(out, theta, move, count, None, 1, move.keep != 1, width, parts)


def steps_of(program: Program) -> tuple[tuple[int, ...], ...]:
    """Returns a program's steps for the kernel: without their numbers, a key of signs as −2 − key."""
    signs = [step.code == DRAW and step.key in program.signs for step in program.steps]
    pairs = zip(program.steps, signs, strict=True)
    return tuple((*s[:6], -2 - s.key if of_signs else s.key, s.rank) for s, of_signs in pairs)


def place_table(rows: Any, values: int, device: torch.device) -> tuple[Tensor, int]:
    """Returns the tensors' rows on the device, each behind its first program, and the number of programs.

    Addresses are a part of the key: a tensor whose memory has moved gets another table.

    Args:
        rows: One per tensor, int64, which begins with its number of values.
        values: Per program.
        device: The GPU.
    """
    shape, values_of = rows.shape, np.ascontiguousarray(rows).tobytes()
    return _place_table(values_of, shape, values, device, _stream(device))


@lru_cache(maxsize=256)
def _place_table(
    rows: bytes, shape: tuple[int, int], values: int, device: torch.device, stream: int
) -> tuple[Tensor, int]:
    table = np.zeros((2 ** shape[0].bit_length(), shape[1] + 1), np.int64)
    table[: shape[0], 1:] = np.frombuffer(rows, np.int64).reshape(shape)
    ends = np.cumsum(-(-table[:, 1] // values))
    table[1:, 0], table[shape[0] :, 0] = ends[:-1], 2**31 - 1
    return _on(device, table), int(ends[-1])


def _launch(
    out: Tensor,
    theta: Tensor | None,
    move: Move,
    count: int,
    places: Tensor | None,
    tensors: int,
    keeps: bool,
    width: int = 0,
    parts: int = 0,
) -> None:
    """Runs the kernel over the tensors of `places`, or over `out` alone."""
    terms, table = (*move.pending, *move.terms), _table_of(move, out)
    numbers = len(terms), len(move.pending), move.tensor, move.start, width, parts
    with compiling.launching(), torch.cuda.device_of(out):
        passes.run[(count,)](
            *(out, theta, move.scale, move.rows, move.limit, places, table, *numbers, move.keep),
            LEVELS=tensors.bit_length(),
            ONE=len(terms) == 1,
            PENDING=len(move.pending) > 0,
            KEEPS=keeps,
            AT_RANDOM=move.rounding is not None,
            SIGNS=move.signs,
            BLOCK=BLOCK,
            enable_fp_fusion=False,
        )


def _table_of(move: Move, like: Tensor) -> Tensor:
    """Returns the table of a move's terms, and of its rounding's key, on the device of `like`."""
    terms = (*move.pending, *move.terms)
    keys = terms if move.rounding is None else (*terms, (0.0, move.rounding))
    philox.counter(keys[0][1] if keys else NO_KEY, move.tensor)
    return term_table(keys, like.device)


def _stream(device: torch.device) -> int:
    """Returns the current stream of a GPU: another one may read a table before it is there."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _on(device: torch.device, rows: Any) -> Tensor:
    """Copies a small array to a device, on a GPU asynchronously."""
    found = torch.from_numpy(rows)
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found


def term_table(terms: tuple[tuple[float, NoiseKey], ...], device: torch.device) -> Tensor:
    """Returns coefficients and keys on the device, (len(terms), 6), int64: see `draws.TERM`."""
    return _term_table(terms, device, _stream(device))


@lru_cache(maxsize=8)
def _term_table(
    terms: tuple[tuple[float, NoiseKey], ...], device: torch.device, stream: int
) -> Tensor:
    lines: list[list[Any]] = []
    before: NoiseKey | None = None
    for c, key in terms:
        low, high, place, step, direction = philox.counter(key, 0)
        seed = int(np.array(high << 32 | low, np.uint64).view(np.int64))
        lines.append([seed, place, step, direction, _bits(c), int(key != before)])
        before = key
    return _on(device, np.array(lines, np.int64).reshape(-1, 6))


def _bits(x: float) -> int:
    """Returns the bits of a number as float32."""
    return int(np.float32(x).view(np.int32))
